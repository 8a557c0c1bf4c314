"""Tables whose rows are sharded over processes that step together, and the collective calls among those processes.

``RankStore`` is an ``EmbeddingStore`` over a process group of ``torch.distributed``; ``Channel`` has the calls.
``import monolith.embedding`` does not load this package, which needs torch.
"""

from monolith.embedding.ranks.channel import Channel, PeersLost
from monolith.embedding.ranks.rank_store import RankChannels, RankStore

__all__ = ["Channel", "PeersLost", "RankChannels", "RankStore"]
