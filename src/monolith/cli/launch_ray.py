"""``monolith launch ray``: runs a job as actors of a Ray cluster, and prints the chief's result."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from monolith.training.cluster.job_config import ClusterJobConfig

__all__ = ["register"]

_EPILOG = (
    "Example: monolith launch ray --num-ps 4 --num-workers 8 --cpus-per-worker 4 -- train --task deepfm "
    "--data '/data/day-*.parquet' --label-features click --model-dir /data/runs/clicks"
)


def register(launch: typer.Typer) -> None:
    """Add ``ray`` to ``launch``."""
    launch.command("ray", epilog=_EPILOG)(ray)


def ray(
    command: Annotated[list[str], typer.Argument(help="'train' and its options, after --.", metavar="-- train ...")],
    num_ps: Annotated[int, typer.Option(min=1, help="Parameter servers.")] = 1,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers, including the chief.")] = 1,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: host:port, ray://host:port, or local to start one here.")
    ] = None,
    restart: Annotated[int, typer.Option(min=-1, help="Restarts of each actor that dies; -1 = no limit.")] = 3,
    cpus_per_ps: Annotated[float, typer.Option(min=0, help="Cores reserved for a parameter server.")] = 1.0,
    cpus_per_worker: Annotated[float, typer.Option(min=0, help="Cores reserved for a worker.")] = 1.0,
    gpus_per_worker: Annotated[float, typer.Option(min=0, help="GPUs reserved for a worker.")] = 0.0,
    working_dir: Annotated[
        str | None, typer.Option(help="Folder that Ray copies to all machines; not needed on a shared file system.")
    ] = None,
    grace_s: Annotated[float, typer.Option(min=0, help="Seconds that processes get to stop before a kill.")] = 60.0,
    log_level: Annotated[str, typer.Option(help="Log level of every process: DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run a job on a Ray cluster.

    --model-dir must be on a file system that all machines share, or a URL; then MONOLITH_STAGING_DIR names a folder
    that they share. Ctrl-C saves a checkpoint and stops all processes, workers first.
    """
    from monolith.cli._job import show_metrics
    from monolith.training.cluster.launch.ray import RayJob, RaySettings

    config, as_json = _job(command, num_ps, num_workers)
    settings = RaySettings(
        address=address,
        max_restarts=restart,
        cpus_per_ps=cpus_per_ps,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        working_dir=working_dir,
        grace_s=grace_s,
        log_level=log_level,
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        metrics = RayJob(config, settings).run()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    show_metrics(metrics, as_json=as_json)


def _job(command: list[str], num_ps: int, num_workers: int) -> tuple[ClusterJobConfig, bool]:
    """Return the settings of the ``train`` command, and True if it has --json."""
    from monolith.cli._job import load_job
    from monolith.core.errors import ConfigError
    from monolith.training.cluster.job_config import ClusterJobConfig
    from monolith.training.config.options import with_config_options

    if not command or command[0] != "train":
        raise ConfigError(
            f"the command is {' '.join(command)!r}, expected 'train' and its options; write them after --"
        )
    jobs: list[tuple[ClusterJobConfig, bool]] = []

    def train(
        flags: Mapping[str, Any],
        config: Annotated[Path | None, typer.Option()] = None,
        as_json: Annotated[bool, typer.Option("--json")] = False,
    ) -> None:
        counts = {"num_ps": str(num_ps), "num_workers": str(num_workers)}
        jobs.append((load_job({**flags, **counts}, config, ClusterJobConfig).config, as_json))

    reader = typer.Typer()
    reader.command()(with_config_options(ClusterJobConfig)(train))
    typer.main.get_command(reader).main(command[1:], prog_name="train", standalone_mode=False)
    if not jobs:  # the options have --help, which is printed
        raise typer.Exit
    return jobs[0]
