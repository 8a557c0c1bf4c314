"""``monolith launch torchrun``: starts the ranks of a synchronous job on this machine, by torch's own launcher."""

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
    nnodes: Annotated[int, typer.Option(min=1, help="Machines; this command is given on each of them.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Number of this machine.")] = 0,
    master_addr: Annotated[str, typer.Option(help="Machine 0, where the ranks meet.")] = "127.0.0.1",
    master_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port there; 0 = any free one, on one machine.")
    ] = 0,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR, of every rank.")] = "INFO",
) -> None:
    """Train synchronously: every rank holds a shard of the tables, and all of them step together.

    A rank that fails ends the job; start it again to go on from the last checkpoint. Ctrl-C ends all of them, with one.
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
        raise ClusterError(f"the job ended with {status}; the rank that failed first is named above, with its reason")


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
        ConfigError: What they are to do is not ``train``, or several machines have no port to meet at.
    """
    from monolith.core.errors import ConfigError

    if not command or command[0] != "train":
        raise ConfigError(f"the command is {' '.join(command)!r}; give 'train' and its options after --")
    if node_rank >= nnodes:
        raise ConfigError(f"node_rank is {node_rank} of {nnodes} machines; give 0 to their number - 1")
    if nnodes > 1 and not master_port:
        raise ConfigError(
            f"nnodes is {nnodes} and master_port is 0; give --master-addr and --master-port, the same on all"
        )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc)]
    if nnodes == 1 and not master_port:
        launcher.append("--standalone")
    else:
        launcher += ["--nnodes", str(nnodes), "--node-rank", str(node_rank)]
        launcher += ["--master-addr", master_addr, "--master-port", str(master_port)]
    return [*launcher, "-m", "monolith", "--log-level", log_level, "train", "--enable-sync-training", *command[1:]]


def _run(arguments: Sequence[str]) -> int:
    """Run a command in a session of its own, to its end; Ctrl-C is passed on once, and it is waited for."""
    process = subprocess.Popen(arguments, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
