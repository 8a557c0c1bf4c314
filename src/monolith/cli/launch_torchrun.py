"""``monolith launch torchrun``: starts the ranks of a synchronous job on this machine, with torch's launcher."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["command_of", "torchrun"]

_COMMAND = "'train' and its options, after --."


def torchrun(
    command: Annotated[list[str], typer.Argument(help=_COMMAND, metavar="-- train ...")],
    nproc: Annotated[int, typer.Option(min=1, help="Ranks on this machine.")] = 1,
    nnodes: Annotated[int, typer.Option(min=1, help="Machines; run this command on each of them.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Index of this machine, from 0.")] = 0,
    master_addr: Annotated[str, typer.Option(help="Host of machine 0, the rendezvous of all ranks.")] = "127.0.0.1",
    master_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on that host; 0 = any free port, for one machine.")
    ] = 0,
    log_level: Annotated[str, typer.Option(help="Log level of every rank: DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Train synchronously: every rank holds a shard of the tables, and all ranks step together.

    A failed rank ends the job; run the command again to resume from the last checkpoint. Ctrl-C saves a checkpoint and
    stops all ranks.
    """
    from monolith.core.errors import ClusterError

    arguments = command_of(
        command,
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        log_level=log_level,
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        status = _run(arguments)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if status:
        raise ClusterError(f"the exit status of the job is {status}, expected 0; see the first failed rank in the log")


def command_of(
    command: Sequence[str],
    *,
    nproc: int,
    nnodes: int = 1,
    node_rank: int = 0,
    master_addr: str = "127.0.0.1",
    master_port: int = 0,
    log_level: str = "INFO",
) -> list[str]:
    """Return the command that starts the ranks.

    Raises:
        ConfigError: ``command`` is not ``train``, or several machines have no port for the rendezvous.
    """
    from monolith.core.errors import ConfigError

    if not command or command[0] != "train":
        raise ConfigError(
            f"the command is {' '.join(command)!r}, expected 'train' and its options; write them after --"
        )
    if node_rank >= nnodes:
        raise ConfigError(f"node_rank is {node_rank}, expected 0 to {nnodes - 1}; nnodes is {nnodes}")
    if nnodes > 1 and not master_port:
        raise ConfigError(
            f"nnodes is {nnodes} and master_port is 0; give --master-addr and --master-port, the same on every machine"
        )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc)]
    if nnodes == 1 and not master_port:
        launcher.append("--standalone")
    else:
        launcher += ["--nnodes", str(nnodes), "--node-rank", str(node_rank)]
        launcher += ["--master-addr", master_addr, "--master-port", str(master_port)]
    return [*launcher, "-m", "monolith", "--log-level", log_level, "train", "--enable-sync-training", *command[1:]]


def _run(arguments: Sequence[str]) -> int:
    """Run a command in a new session and return its status; on Ctrl-C, send it one SIGTERM and wait for its end."""
    process = subprocess.Popen(arguments, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
