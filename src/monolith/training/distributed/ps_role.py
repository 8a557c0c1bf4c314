"""The role of a parameter server: holds its shard until the chief, or a signal, says that the job is over.

Starts without torch, and takes its rows from the newest checkpoint of the job, when there is one, and from its own
delta log in the folder of the job.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from monolith.artifacts import CheckpointFolder
from monolith.ps import ParameterServer, PsClient, Security, ServerConfig
from monolith.ps.barrier import OK
from monolith.training.distributed.config import DistributedConfig
from monolith.training.distributed.lifecycle import Session

__all__ = ["end_servers", "log_folder", "newest_tables", "serve", "server_config"]

logger = logging.getLogger(__name__)

_END = "the end of the job"
_LOOK_MS = 500


def newest_tables(model_dir: str | Path) -> Path | None:
    """Return the tables of the newest checkpoint of a model folder; None where there is none.

    Raises:
        ArtifactError: What seems to be the newest one is damaged.
    """
    if not str(model_dir):
        return None
    newest = CheckpointFolder(Path(model_dir) / "checkpoints").newest()
    return None if newest is None else newest.path / "tables"


def log_folder(model_dir: str | Path, index: int) -> Path | None:
    """Return where the delta log of a server is; None for a job that has no folder."""
    return Path(model_dir) / "delta_log" / f"ps_{index}" if str(model_dir) else None


def server_config(config: DistributedConfig, security: Security, model_dir: str | Path) -> ServerConfig:
    """Return what the server of this process is told."""
    return ServerConfig(
        index=config.index,
        shards=config.num_ps,
        host=config.bind_host,
        advertised_host=config.advertised_host,
        port=config.bind_port,
        default_dim=config.dim,
        security=security,
        recover_from=newest_tables(model_dir),
        delta_log=log_folder(model_dir, config.index),
    )


def serve(session: Session, config: ServerConfig, ended: threading.Event) -> None:
    """Serve until ``ended`` is set or the chief says so; registered under the port that it really has."""
    session.config.check()
    index = session.config.index
    log = None if config.delta_log is None else config.delta_log.with_name(f"ps_{index}")
    with ParameterServer(replace(config, index=index, delta_log=log)) as server:
        host, _, port = server.address.rpartition(":")
        session.register(host.strip("[]"), int(port))
        with session.heartbeat():
            while not ended.is_set():
                # The chief is the other one at this barrier: when it comes, the job is over.
                if server.service.barriers.wait(_END, 0, 2, _LOOK_MS).status == OK:
                    logger.info("the chief says that the job is over index=%d", config.index)
                    return


def end_servers(addresses: tuple[str, ...], security: Security) -> None:
    """Tell all servers that the job is over. One that is not in this role does not listen, and goes on."""

    def tell(client: PsClient, index: int) -> None:
        try:
            client.barrier_on_shard(index, _END, 1, 2, 2 * _LOOK_MS)
        except Exception as error:
            logger.info("a server was not told of the end index=%d reason=%s", index, error)

    with PsClient(addresses, security=security, timeout_s=5.0) as client:
        threads = [threading.Thread(target=tell, args=(client, index)) for index in range(len(addresses))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
