"""Summaries that TensorBoard opens: event files of a run and of its evaluations.

The only module that imports tensorboardX, and only when a file is made. Which numbers there are is known by
:mod:`monolith.training.metrics`.
"""

from __future__ import annotations

import importlib
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.metrics.insight_summaries import InsightSummary
from monolith.training.metrics.run_metrics import RunMetrics
from monolith.training.metrics.table_sizes import table_sizes
from monolith.training.metrics.throughput import Throughput
from monolith.training.run import Run, StepResult

__all__ = ["SummaryFile", "SummaryHook", "measure_run", "write_summary"]

_PLUGIN = "monolith"


class SummaryFile:
    """A new event file in a folder. Every call is in the file when it returns, after ``flush`` for other processes.

    Args:
        folder: TensorBoard's log folder or one below it; created when absent. Folder and file appear with the first
            summary, so that a run that is refused leaves neither.
        clock: Where the time of an event comes from.

    Raises:
        ConfigError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._event = _load("tensorboardX.proto.event_pb2").Event
        self._messages = _load("tensorboardX.proto.summary_pb2")
        self._tensors = _load("tensorboardX.proto.tensor_pb2")
        self._folder = Path(folder)
        self._make_writer: Any = _load("tensorboardX.event_file_writer").EventsWriter
        self._writer: Any = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by tag; those that are NaN are left out."""
        summary = self._messages.Summary()
        for tag, value in values.items():
            if not math.isnan(value):
                summary.value.add(tag=tag, simple_value=value)
        self._write(summary, step)

    def insight(self, insight: InsightSummary, step: int) -> None:
        """Write a summary for the "monolith" plugin."""
        summary = self._messages.Summary()
        value = summary.value.add(tag=insight.tag)
        value.metadata.plugin_data.plugin_name = _PLUGIN
        value.metadata.plugin_data.content = insight.head.encode()
        value.tensor.CopyFrom(self._tensor(insight))
        self._write(summary, step)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file. May be called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tensor(self, insight: InsightSummary) -> Any:
        tensor = self._tensors.TensorProto(dtype="DT_FLOAT", tensor_content=insight.values.astype("<f4").tobytes())
        for size in insight.values.shape:
            tensor.tensor_shape.dim.add(size=size)
        return tensor

    def _write(self, summary: Any, step: int) -> None:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The name holds whole seconds only: the suffix keeps two files of one second apart.
            self._writer = self._make_writer(str(self._folder / "events"), f".{uuid.uuid4().hex[:8]}")
        self._writer.write_event(self._event(wall_time=self._clock.now_s(), step=step, summary=summary))


def write_summary(
    logs: Mapping[str, float], step: int, folder: str | os.PathLike[str], *, clock: Clock | None = None
) -> None:
    """Write numbers to a new event file, such as an evaluation's to ``<model_dir>/eval``."""
    with SummaryFile(folder, clock=clock) as file:
        file.scalars(logs, step)


def measure_run(run: Run, result: StepResult, metrics: RunMetrics, throughput: Throughput | None) -> dict[str, float]:
    """Return the numbers of a run after a step, by the tags of ``SummaryHook``."""
    values = {"loss": result.loss, **metrics.window()}
    if throughput is not None:
        rates = throughput.rates()
        values["speed/samples_per_s"] = rates.samples_per_s
        values["speed/ids_per_s"] = rates.ids_per_s
        values["speed/steps_per_s"] = rates.steps_per_s
    for name, size in table_sizes(run.store).items():
        values[f"tables/{name}/rows"] = size.rows
        values[f"tables/{name}/bytes"] = size.bytes
    return values


class SummaryHook(Hook):
    """Writes the state of a run to ``<model_dir>`` every ``every_steps`` steps, and once more at the end.

    Tags: ``loss``; ``HEAD/METRIC``, over the last window of ``metrics``; ``run/HEAD/METRIC``, over the whole run, at
    the end only; ``speed/samples_per_s``, ``speed/ids_per_s``, ``speed/steps_per_s``; ``tables/NAME/rows`` and
    ``tables/NAME/bytes``.

    Args:
        metrics: The run's metrics; the loop updates them.
        every_steps: Steps between two summaries.
        folder: Where the files go; None = the run's folder.
    """

    def __init__(
        self, metrics: RunMetrics, *, every_steps: int = 100, folder: str | os.PathLike[str] | None = None
    ) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps must be at least 1, got {every_steps}")
        self._metrics = metrics
        self._every_steps = every_steps
        self._folder = folder
        self._file: SummaryFile | None = None
        self._throughput: Throughput | None = None
        self._last: StepResult | None = None

    @property
    def file(self) -> SummaryFile:
        """The file of the current run, for custom summaries."""
        if self._file is None:
            raise ConfigError("there is no summary file yet; it is made when the run starts")
        return self._file

    def on_start(self, run: Run) -> None:
        """Make the file."""
        self._file = SummaryFile(self._folder or run.model_dir, clock=run.clock)
        self._throughput = Throughput(run.clock)
        self._last = None

    def after_step(self, run: Run, result: StepResult) -> None:
        """Write a summary when it is time."""
        if self._throughput is None:
            return
        self._throughput.add(samples=result.samples, ids=result.ids)
        self._last = result
        if result.step % self._every_steps == 0:
            self._write(result.step, self._values(run, result))

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Write the last summary and close the file."""
        if self._file is None:
            return
        if self._last is not None:
            values = {f"run/{name}": value for name, value in self._metrics.results().items()}
            if self._last.step % self._every_steps:
                values |= self._values(run, self._last)
            self._write(self._last.step, values)
        self._file.close()
        self._file = self._last = None  # a run that is over keeps no batch

    def _values(self, run: Run, result: StepResult) -> dict[str, float]:
        return measure_run(run, result, self._metrics, self._throughput)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self.file.scalars(values, step)
        self.file.flush()


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"summaries need tensorboardX ({exc}); install it with: pip install 'monolith[train]'"
        ) from exc
