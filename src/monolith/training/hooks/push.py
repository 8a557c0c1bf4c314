"""Pushes the rows that a run changes to model servers, from the log that the run publishes."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.core.errors import ConfigError
from monolith.embedding import EmbeddingStore
from monolith.sync.push_targets import parse_targets
from monolith.training.config.push import PushConfig
from monolith.training.groups.ranks.rank_store import RankStore
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

if TYPE_CHECKING:
    from monolith.sync.push import RowPusher
    from monolith.sync.push_sender import Export

__all__ = ["PushHook"]

_FLUSH_S = 60.0


class PushHook(Hook):
    """Pushes from the start of a run to its end, where targets that answer get the rest before it is over.

    It goes before the ``PublishHook`` of the same folder in the list of hooks, and so ends after it.

    Args:
        folder: Where the run publishes.
        config: Targets, signature, timeout and security.

    Raises:
        ConfigError: There are no targets.
    """

    def __init__(self, folder: str | PathLike[str], config: PushConfig) -> None:
        self._folder = Path(folder)
        self._config = config
        self._targets = parse_targets(config.sync_targets, config.sync_model_name)
        if not self._targets:
            raise ConfigError("sync_targets is empty; name at least one model server")
        self.export: Export | None = None
        """Where numbers go."""
        self.pusher: RowPusher | None = None
        """The pusher of the current run."""

    def on_start(self, run: Run) -> None:
        """Begin to push."""
        from monolith.rpc.security import Security, read_token  # gRPC is for those who push
        from monolith.sync.push import PushSettings, RowPusher

        config = self._config
        store: EmbeddingStore = run.store
        shard = (0, 1)
        if isinstance(store, RankStore):  # each rank pushes its own rows
            store, shard = store.tables, (store.connection.rank, store.connection.size)
        ca_file = None if config.sync_ca_file is None else Path(config.sync_ca_file)
        self.pusher = RowPusher(
            self._folder,
            store,
            self._targets,
            clock=run.clock,
            signature=config.sync_signature_name,
            shard=shard,
            settings=PushSettings(
                timeout_s=config.sync_timeout_s,
                security=Security(ca_file=ca_file, token=read_token(config.sync_token_file, "sync_token_file")),
            ),
            export=self.export,
        )
        self.pusher.start()

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Push the last published rows, unless the run failed, and stop."""
        if self.pusher is None:
            return
        if error is None:
            self.pusher.flush(_FLUSH_S)
        self.pusher.close()
        self.pusher = None
