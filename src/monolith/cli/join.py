"""``monolith join``: joins impressions with actions into examples, until a signal stops it or the input ends."""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from monolith.core.errors import ClusterError, ConfigError, MonolithError

if TYPE_CHECKING:
    from monolith.stream.runtime.group import JoinGroup
    from monolith.stream.runtime.job import JoinRun

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith join --input log://data/impressions --input log://data/actions --output log://data/examples "
    "--state data/join --tasks 'click:1;like:2' --window-s 600"
)
_STOP_TIMEOUT_S = 60.0


def register(app: typer.Typer) -> None:
    """Add ``join`` to the program."""
    app.command("join", epilog=_EPILOG)(join)


def join(
    inputs: Annotated[
        list[str], typer.Option("--input", help="URL of an input topic, log://... or kafka://...; repeat it for more.")
    ],
    output: Annotated[str, typer.Option(help="URL of the topic for examples.")],
    state: Annotated[Path, typer.Option(help="Folder for snapshots, journals and spilled state.")],
    dead: Annotated[str | None, typer.Option(help="URL of the topic for dead letters; default: OUTPUT.dead.")] = None,
    name: Annotated[str, typer.Option(help="Name of the join: consumer group and producer.")] = "join",
    tasks: Annotated[str, typer.Option(help="Positive action codes of each task, as name:code,code;...")] = "click:1",
    window_s: Annotated[float, typer.Option(help="Seconds after an impression in which actions count.")] = 600.0,
    horizon_s: Annotated[
        float | None, typer.Option(help="Seconds after the close in which late events are recognized.")
    ] = None,
    orphan_hold_s: Annotated[
        float | None, typer.Option(help="Seconds for which an action waits for its impression; default: the window.")
    ] = None,
    skew_s: Annotated[float, typer.Option(help="Seconds by which an action may precede its impression.")] = 2.0,
    out_of_order_s: Annotated[float, typer.Option(help="Disorder of events that the watermark allows for.")] = 10.0,
    idle_s: Annotated[float, typer.Option(help="Silence after which the watermark ignores a partition.")] = 10.0,
    future_s: Annotated[float, typer.Option(help="Most seconds by which an event may be ahead of its append.")] = 300.0,
    late: Annotated[str, typer.Option(help="Policy for late actions: drop, reemit or correct.")] = "drop",
    mode: Annotated[str, typer.Option(help="standard: one row at the close; fast: a row per change.")] = "standard",
    sample_rate: Annotated[float, typer.Option(help="Share of rows without a positive label that stay.")] = 1.0,
    sampling: Annotated[str | None, typer.Option(help="Correction of --sample-rate: logit or weight.")] = None,
    record: Annotated[str, typer.Option(help="Input messages: example, instance or example_batch.")] = "example",
    partitions: Annotated[
        str | None, typer.Option(help="Partitions to join, such as 0-3,7; default: free ones.")
    ] = None,
    members: Annotated[int, typer.Option(min=1, help="Number of processes that share the partitions.")] = 1,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take partitions from a process that is stopped but not dead.")
    ] = False,
    start: Annotated[str, typer.Option(help="Where to begin without a snapshot: earliest or latest.")] = "earliest",
    on_lost: Annotated[
        str, typer.Option(help="If retention removed unread records: raise, or continue at the earliest.")
    ] = "raise",
    on_corrupt: Annotated[
        str, typer.Option(help="On a damaged batch of a log: raise, or skip it and count its records as lost.")
    ] = "raise",
    memory_mb: Annotated[int, typer.Option(min=1, help="State in memory per partition, MiB; more is spilled.")] = 1024,
    disk_mb: Annotated[int, typer.Option(min=0, help="Spilled state per partition, MiB; then windows close early.")] = (
        16384
    ),
    commit_ms: Annotated[int, typer.Option(min=0, help="Longest time between a record and its commit.")] = 200,
    snapshot_s: Annotated[float, typer.Option(min=0.01, help="Seconds between snapshots.")] = 60.0,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the end of the input and close every window.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz; default: off.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Join impressions with actions into labelled examples. SIGTERM and Ctrl-C commit, save a snapshot and stop."""
    from monolith.core.lifeline import end_with_starter
    from monolith.core.stop_signals import stop_signals
    from monolith.stream.runtime.group import GroupOptions
    from monolith.stream.runtime.job import JoinRun
    from monolith.stream.runtime.topics import JoinTopics
    from monolith.stream.settings import JoinSettings, parse_tasks

    _check("start", start, ("earliest", "latest"))
    _check("on-lost", on_lost, ("raise", "earliest"))
    _check("on-corrupt", on_corrupt, ("raise", "skip"))
    settings = JoinSettings(
        tasks=parse_tasks(tasks),
        window_ms=_to_ms("window-s", window_s),
        horizon_ms=None if horizon_s is None else _to_ms("horizon-s", horizon_s),
        orphan_hold_ms=None if orphan_hold_s is None else _to_ms("orphan-hold-s", orphan_hold_s),
        skew_ms=_to_ms("skew-s", skew_s),
        out_of_order_ms=_to_ms("out-of-order-s", out_of_order_s),
        idle_ms=_to_ms("idle-s", idle_s),
        future_ms=_to_ms("future-s", future_s),
        late=cast(Any, late),
        mode=cast(Any, mode),
        sample_rate=sample_rate,
        sampling=cast(Any, sampling),
    )
    options = GroupOptions(
        commit_ms=commit_ms,
        snapshot_s=snapshot_s,
        memory_bytes=memory_mb << 20,
        disk_bytes=disk_mb << 20,
        idle_advance=not until_end,
    )
    topics = JoinTopics(
        inputs,
        output,
        dead,
        name=name,
        start=cast(Any, start),
        on_lost=cast(Any, on_lost),
        on_corrupt=cast(Any, on_corrupt),
    )

    def make_group(partition: int) -> JoinGroup:
        return topics.make_group(
            partition, settings, state / name, record=cast(Any, record), options=options, take_over=take_over
        )

    end_with_starter(os.environ)
    groups = _take_groups(make_group, topics.partitions, partitions, members)
    run = JoinRun(groups.__getitem__, groups, until_end=until_end)
    with stop_signals() as endings, _metrics_page(run, metrics_port):
        run.start()
        logger.info("join started partitions=%s", sorted(groups))
        while not run.is_done():
            try:
                logger.info("join stopping signal=%s", endings.get(timeout=0.2))
                break
            except queue.Empty:
                continue
        run.stop()
        run.wait(_STOP_TIMEOUT_S)
    _show(run, as_json)
    if run.failures:
        raise next(iter(run.failures.values()))


def _take_groups(
    make_group: Callable[[int], JoinGroup], count: int, chosen: str | None, members: int
) -> dict[int, JoinGroup]:
    """Return the groups of the chosen partitions, or of free ones: at most this process's share."""
    from monolith.data.sources.urls import parse_partitions

    groups: dict[int, JoinGroup] = {}
    try:
        if chosen is not None:
            for number in parse_partitions(chosen):
                groups[number] = make_group(number)
            return groups
        share = -(-count // members)
        for number in range(count):
            if len(groups) == share:
                break
            try:
                groups[number] = make_group(number)
            except ClusterError:
                if members == 1:
                    raise
        if not groups:
            raise ClusterError(f"all {count} partitions have an owner, expected a free one; start fewer processes")
    except (MonolithError, OSError):
        for group in groups.values():
            group.abandon()
        raise
    return groups


def _metrics_page(run: JoinRun, port: int | None) -> Any:
    from contextlib import nullcontext

    if port is None:
        return nullcontext()
    from monolith.data.sources.event_log.writer_metrics import log_writer_samples
    from monolith.stream.runtime.metrics import collect_metrics
    from monolith.telemetry.page import MetricsPage
    from monolith.telemetry.registry import Registry

    registry = Registry()
    registry.collect(lambda: collect_metrics(run, time.time()))
    registry.collect(log_writer_samples)
    page = MetricsPage(
        registry.text, lambda: (not run.failures, "OK" if not run.failures else "a group failed"), port=port
    )
    typer.echo(f"metrics at port {page.port}", err=True)
    return page


def _show(run: JoinRun, as_json: bool) -> None:
    total = {
        "partitions": sorted(run.groups),
        "records": sum(group.status.records for group in run.groups.values()),
        "rows": sum(group.status.rows for group in run.groups.values()),
        "dead_letters": sum(group.status.dead_letters.total() for group in run.groups.values()),
        "open_impressions": sum(group.status.open_impressions for group in run.groups.values()),
    }
    if as_json:
        typer.echo(json.dumps(total))
        return
    typer.echo(
        f"joined {total['records']} records of partitions {total['partitions']} into {total['rows']} examples; "
        f"{total['dead_letters']} dead letters, {total['open_impressions']} windows open"
    )


def _check(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"--{name} is {value!r}, expected one of {', '.join(choices)}")


def _to_ms(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ConfigError(f"--{name} is {seconds}, expected a finite number of seconds")
    return round(seconds * 1000)
