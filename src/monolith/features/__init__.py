"""Features of a model: declarations, layouts, and the functions that spread ids over shards."""

__all__: list[str] = []
