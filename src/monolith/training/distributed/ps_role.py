"""The role of a parameter server: holds its shard until the chief, or a signal, says that the job is over.

Starts without torch, and takes its rows from the newest checkpoint of the job, when there is one, and from its own
delta log in the folder of the job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from monolith.artifacts import CheckpointFolder
from monolith.core.errors import MonolithError
from monolith.core.retry import RetryPolicy, retry
from monolith.core.stop_signals import Endings
from monolith.ps import ParameterServer, Security, ServerConfig, messages
from monolith.ps.barrier import OK
from monolith.ps.link import ServerLink
from monolith.training.distributed.config import DistributedConfig
from monolith.training.distributed.lifecycle import Session

__all__ = ["end_servers", "log_folder", "newest_tables", "serve", "server_config"]

logger = logging.getLogger(__name__)

_END = "the end of the job"
_FOR_EVER_MS = 100 * 365 * 86_400_000
_ANSWER_MS = 1000
_END_RETRIES = RetryPolicy(attempts=1000, initial_backoff_s=0.1, max_backoff_s=1.0, deadline_s=20.0)


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


def serve(session: Session, config: ServerConfig, endings: Endings) -> None:
    """Serve until there is a reason to end, a signal or the chief; registered under the port that it really has."""
    session.config.check()
    index = session.config.index
    log = None if config.delta_log is None else config.delta_log.with_name(f"ps_{index}")
    with ParameterServer(replace(config, index=index, delta_log=log)) as server:
        host, _, port = server.address.rpartition(":")
        with _listening_for_end(server, endings):
            session.register(host.strip("[]"), int(port))
            with session.heartbeat():
                logger.info("the server ends index=%d reason=%s", config.index, endings.get())


@contextmanager
def _listening_for_end(server: ParameterServer, endings: Endings) -> Iterator[None]:
    """Stand at the barrier that the chief comes to when the job is over, all the time: whenever it comes, it is heard.

    Afterwards too, for a chief whose first answer was lost.
    """
    stands, is_over = threading.Event(), threading.Event()
    leave: list[Callable[[], None]] = []

    def arrive(how_to_leave: Callable[[], None]) -> bool:
        leave[:] = [how_to_leave]
        stands.set()
        return not is_over.is_set()

    def listen() -> None:
        while server.service.barriers.wait(_END, 0, 2, _FOR_EVER_MS, arrive).status == OK:
            endings.put("the chief says that the job is over")

    thread = threading.Thread(target=listen, name="end-of-job", daemon=True)
    thread.start()
    stands.wait()
    try:
        yield
    finally:
        is_over.set()
        leave[0]()
        thread.join()


def end_servers(addresses: Sequence[str], security: Security, retries: RetryPolicy = _END_RETRIES) -> None:
    """Tell all servers that the job is over. One that is not in this role does not listen, and goes on.

    A server that is away or held is told again until ``retries`` gives up; nothing is raised, as the training is saved.
    """
    threads = [threading.Thread(target=_end_server, args=(address, security, retries)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _end_server(address: str, security: Security, retries: RetryPolicy) -> None:
    request = messages.BarrierRequest(barrier_id=_END, worker_id=1, num_workers=2, timeout_ms=_ANSWER_MS)
    link = ServerLink(address, security)
    try:
        answer = retry(retries, lambda: link.call("Barrier", request, 5 * _ANSWER_MS / 1000))
        if answer.status_code != OK:
            logger.info("a server does not listen for the end address=%s reason=%s", address, answer.error_message)
    except MonolithError as error:
        logger.warning("a server was not told of the end address=%s reason=%s", address, error)
    finally:
        link.close()
