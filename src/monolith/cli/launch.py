"""``monolith launch``: starts all processes of a job, and prints their logs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from monolith.cli import launch_ray
from monolith.cli.launch_torchrun import torchrun

__all__ = ["register"]

_EPILOG = (
    "Example: monolith launch local --num-ps 2 --num-workers 2 -- train --task deepfm --data 'day-*.parquet' "
    "--label-features click --model-dir runs/clicks"
)

_TORCHRUN_EPILOG = (
    "Example: monolith launch torchrun --nproc 2 -- train --task deepfm --data 'day-*.parquet' "
    "--label-features click --model-dir runs/clicks"
)


_PREPARE_EPILOG = "Example: monolith launch prepare --zk-server zk1:2181 --uuid clicks-7    Replace a job: --force"


def register(app: typer.Typer) -> None:
    """Add ``launch`` to the program."""
    launch = typer.Typer(no_args_is_help=True, help="Start all processes of a job.", epilog=_EPILOG)
    launch.callback()(_no_options)
    launch.command("local", epilog=_EPILOG)(local)
    launch.command("torchrun", epilog=_TORCHRUN_EPILOG)(torchrun)
    launch_ray.register(launch)
    launch.command("prepare", epilog=_PREPARE_EPILOG)(prepare)
    app.add_typer(launch, name="launch")


def _no_options() -> None:
    pass


def prepare(
    zk_server: Annotated[str, typer.Option(help="ZooKeeper: host:port,host:port,...")],
    uuid: Annotated[str, typer.Option(help="Name of the job that is about to start.")],
    force: Annotated[bool, typer.Option("--force", help="Remove the nodes of a job with this name first.")] = False,
) -> None:
    """Check that a job has no process in ZooKeeper, and remove jobs that are nine weeks old and have no process.

    Run it before the first process of a job with --discovery-type zookeeper: processes of two jobs with one uuid would
    find each other. ZK_AUTH is user:password.
    """
    from monolith.discovery import prepare_job

    prepare_job(zk_server, uuid, auth=os.environ.get("ZK_AUTH") or None, is_forced=force)
    typer.echo(f"job {uuid} may start")


def local(
    command: Annotated[list[str], typer.Argument(help="'train' and its options, after --.", metavar="-- train ...")],
    num_ps: Annotated[int, typer.Option(min=1, help="Parameter servers.")] = 1,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers, including the chief.")] = 1,
    restart: Annotated[
        int, typer.Option(min=0, help="Restarts of each process that dies; 0 = a dead process ends the job.")
    ] = 3,
    grace_s: Annotated[float, typer.Option(min=0, help="Seconds that processes get to stop before a kill.")] = 60.0,
    log_level: Annotated[str, typer.Option(help="Log level of every process: DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run a job of several processes on this machine.

    Logs go to standard error, each line prefixed with its process; the chief's result goes to standard output.
    Ctrl-C saves a checkpoint and stops all processes, workers first. A process that dies is restarted --restart times,
    except after the same error twice in a row.
    """
    from monolith.core.errors import ClusterError
    from monolith.training.cluster.launch.local import LocalJob

    options = ["--log-level", log_level]
    view = _View(num_ps, num_workers)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        with LocalJob(
            command,
            num_ps=num_ps,
            num_workers=num_workers,
            say=view.say,
            max_restarts=restart,
            options=options,
            grace_s=grace_s,
        ) as job:
            ended = job.wait()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if ended is not None:
        raise ClusterError(f"{ended.reason} (the other processes were stopped)")


class _View:
    """Prints the lines of all processes, one at a time."""

    def __init__(self, num_ps: int, num_workers: int) -> None:
        self._width = max(
            len("chief"), len(f"worker {num_workers - 1}") if num_workers > 1 else len(f"ps {num_ps - 1}")
        )
        self._lock = threading.Lock()

    def say(self, name: str, line: str, is_out: bool) -> None:
        with self._lock:
            if is_out and name == "chief":
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            elif not is_out or line.strip():
                sys.stderr.write(f"{name:<{self._width}} | {line}\n")
                sys.stderr.flush()
