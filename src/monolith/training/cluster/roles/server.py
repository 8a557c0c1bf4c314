"""The role of a parameter server: holds its shard until the chief, or a signal, ends the job.

Starts without torch. It recovers its rows from the newest checkpoint of the job and from its delta log in the folder of
the job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from monolith.core.config_sections import replace_settings
from monolith.core.errors import AlreadyRegistered, MonolithError
from monolith.core.retry import RetryPolicy, retry
from monolith.core.stop_signals import Endings
from monolith.ps import ParameterServer, Security, ServerConfig, messages
from monolith.ps.link import ServerLink
from monolith.training.cluster.config import DistributedConfig
from monolith.training.cluster.lifecycle import Session
from monolith.training.cluster.model_folder import log_folder, newest_tables

__all__ = ["serve", "server_config", "shut_down_servers"]

logger = logging.getLogger(__name__)

_CALL_S = 5.0
_RETRIES = RetryPolicy(attempts=1000, initial_backoff_s=0.1, max_backoff_s=1.0, deadline_s=20.0)


def server_config(config: DistributedConfig, security: Security, model_dir: str | Path) -> ServerConfig:
    """Return the settings of the server of this process."""
    return ServerConfig(
        index=config.index,
        shards=config.num_ps,
        host=config.listen.bind_host,
        advertised_host=config.listen.advertised_host or "",
        port=config.listen.bind_port,
        default_dim=config.table.dim,
        security=security,
        recover_from=newest_tables(model_dir),
        delta_log=log_folder(model_dir, config.index),
    )


def serve(session: Session, config: ServerConfig, endings: Endings) -> None:
    """Serve until a signal or the chief ends the server, registered under the port that the server has.

    Raises:
        AlreadyRegistered: Another server has taken the place of this one. Workers must not train on two copies of one
            shard, so this server stops.
    """
    session.config.check()
    index = session.config.index
    log = None if config.recovery.delta_log is None else config.recovery.delta_log.with_name(f"ps_{index}")
    server = ParameterServer(replace_settings(config, index=index, delta_log=log))
    server.service.on_shutdown = endings.put  # before the start: a chief may know the port of an earlier instance
    with server:
        host, _, port = server.address.rpartition(":")
        session.register(host.strip("[]"), int(port))
        replaced: list[AlreadyRegistered] = []

        def stop(error: AlreadyRegistered) -> None:
            replaced.append(error)
            endings.put("place in discovery lost to another server")

        with session.heartbeat(stop):
            logger.info("parameter server stopping index=%d reason=%s", config.index, endings.get())
        if replaced:
            raise replaced[0]


def shut_down_servers(addresses: Sequence[str], security: Security, retries: RetryPolicy = _RETRIES) -> None:
    """Shut down all servers of a job. A server that is not part of a job continues.

    A server that does not answer is called again until ``retries`` gives up. Failures are logged, not raised, because
    the training is saved.
    """
    threads = [threading.Thread(target=_shut_down, args=(address, security, retries)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _shut_down(address: str, security: Security, retries: RetryPolicy) -> None:
    request = messages.ShutdownRequest(reason="the chief ends the job")
    link = ServerLink(address, security)
    try:
        answer = retry(retries, lambda: link.call("Shutdown", request, _CALL_S))
        if not answer.is_accepted:
            logger.info("server not part of a job, shutdown skipped address=%s", address)
    except MonolithError as error:
        logger.warning("server shutdown failed address=%s error=%s", address, error)
    finally:
        link.close()
