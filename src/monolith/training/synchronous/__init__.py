"""Synchronous training: ranks that step together, each with a shard of every table and a copy of the dense part."""
