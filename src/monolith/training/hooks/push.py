"""Pushes the rows that a run changes to model servers, from the log that the run publishes.

Targets are fixed, or the servers of a fleet, which ZooKeeper names.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from monolith.artifacts.remote_folder import local_path
from monolith.core.errors import ConfigError
from monolith.embedding.ranks.rank_store import RankStore
from monolith.sync.push_targets import FleetAddress, fleet_targets, parse_targets, split_fleets
from monolith.training.config.push import PushConfig
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

if TYPE_CHECKING:
    from monolith.discovery.fleet_watch import FleetWatch
    from monolith.discovery.zookeeper_client import ZooKeeperClient
    from monolith.sync.push import RowPusher
    from monolith.sync.push_sender import Export

__all__ = ["PushHook"]

_FLUSH_S = 60.0
_SESSION_TIMEOUT_S = 10.0


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
        self._folder = local_path(folder)
        self._config = config
        fixed, self._fleets = split_fleets(config.sync_targets)
        self._targets = parse_targets(fixed, config.sync_model_name)
        if not self._targets and not self._fleets:
            raise ConfigError("sync_targets is empty; name at least one model server")
        self._watched: list[tuple[ZooKeeperClient, FleetWatch]] = []
        self.export: Export | None = None
        """Where numbers go."""
        self.pusher: RowPusher | None = None
        """The pusher of the current run."""

    @override
    def on_start(self, run: Run) -> None:
        """Begin to push."""
        from monolith.rpc.security import Security, read_token  # gRPC is for those who push
        from monolith.sync.push import PushSettings, RowPusher

        config = self._config
        store, shard = run.store, (0, 1)
        if isinstance(run.store, RankStore):  # each rank pushes the rows that it holds
            store, shard = run.store.tables, (run.store.connection.rank, run.store.connection.size)
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
        for fleet in self._fleets:
            self._follow(fleet, run)

    def _follow(self, fleet: FleetAddress, run: Run) -> None:
        from monolith.discovery.fleet_watch import FleetWatch
        from monolith.discovery.zookeeper_client import ZooKeeperClient, checked_servers

        session = ZooKeeperClient(
            checked_servers(fleet.zk_servers),
            auth=os.environ.get("ZK_AUTH"),
            session_timeout_s=_SESSION_TIMEOUT_S,
            timeout_s=_SESSION_TIMEOUT_S,
            clock=run.clock,
        )
        session.start()
        self._watched.append((session, FleetWatch(session, fleet.bzid, fleet.model, on_change=self._retarget)))

    def _retarget(self) -> None:
        """Push to the fixed targets and to the present servers of all fleets."""
        if self.pusher is None:
            return
        found = [target for _, watch in self._watched for target in fleet_targets(watch.servers())]
        self.pusher.set_targets([*self._targets, *found])

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Push the last published rows, unless the run failed, and stop."""
        if self.pusher is None:
            return
        for session, watch in self._watched:
            watch.close()
            session.stop()
        self._watched.clear()
        if error is None:
            self.pusher.flush(_FLUSH_S)
        self.pusher.close()
        self.pusher = None
