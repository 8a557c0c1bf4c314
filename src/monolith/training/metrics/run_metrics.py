"""All metrics of a head and of a run: over the whole run, and over a window of steps.

Predictions are computed before a step trains on its batch, so the metrics of training are progressive validation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monolith.core.errors import ConfigError
from monolith.training.metrics.auc import StreamingAuc
from monolith.training.metrics.averages import Calibration, LogLoss, MeanSquaredError
from monolith.training.metrics.base import Metric
from monolith.training.metrics.samples import select_probabilities, select_values

if TYPE_CHECKING:
    from monolith.training.run import HeadResult, StepResult

__all__ = ["HeadMetrics", "RunMetrics"]


class HeadMetrics:
    """The metrics of one head: AUC, log loss and calibration of a classification, MSE and calibration of others.

    Args:
        name: The head's name, for errors.
        is_classification: Whether it predicts probabilities.
        auc_exact_size: Rows up to which the AUC is exact.
    """

    def __init__(self, name: str, *, is_classification: bool = True, auc_exact_size: int = 1_000_000) -> None:
        self._name = name
        self._is_classification = is_classification
        self._metrics: dict[str, Metric] = (
            {"auc": StreamingAuc(auc_exact_size), "log_loss": LogLoss(), "calibration": Calibration()}
            if is_classification
            else {"mse": MeanSquaredError(), "calibration": Calibration()}
        )

    @property
    def is_classification(self) -> bool:
        """Whether the head predicts probabilities."""
        return self._is_classification

    def update(self, result: HeadResult) -> None:
        """Count the head's result of one batch; no-op without a label.

        Raises:
            DataError: A prediction that counts is NaN or infinite, or no probability where there should be one.
        """
        if result.label is None:
            return
        select = select_probabilities if self._is_classification else select_values
        samples = select(result.predictions, result.label, result.mask, result.weight, head=self._name)
        for metric in self._metrics.values():
            metric.add(samples)

    def results(self) -> dict[str, float]:
        """Return the values by name. An AUC that is no longer exact comes with ``auc_error_bound``."""
        values = {name: metric.result() for name, metric in self._metrics.items()}
        auc = self._metrics.get("auc")
        if isinstance(auc, StreamingAuc) and not auc.is_exact:
            values["auc_error_bound"] = auc.error_bound()
        return values

    def merge(self, other: HeadMetrics) -> None:
        """Count all that ``other`` has counted.

        Raises:
            ConfigError: ``other`` is of another kind of head.
        """
        self.check_kind(other._is_classification)
        for name, metric in self._metrics.items():
            metric.merge(other._metrics[name])

    def reset(self) -> None:
        """Forget everything."""
        for metric in self._metrics.values():
            metric.reset()

    def state(self) -> dict[str, Any]:
        """Return the exact counts as JSON values."""
        metrics = {name: metric.state() for name, metric in self._metrics.items()}
        return {"is_classification": self._is_classification, "metrics": metrics}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those of ``state``.

        Raises:
            ConfigError: It was saved for another kind of head.
        """
        self.check_kind(bool(state["is_classification"]))
        for name, metric in self._metrics.items():
            metric.restore(state["metrics"][name])

    def check_kind(self, is_classification: bool) -> None:
        """Refuse metrics of another kind of head.

        Raises:
            ConfigError: The kinds differ.
        """
        if is_classification != self._is_classification:
            kinds = {True: "a classification", False: "a regression"}
            raise ConfigError(
                f"head {self._name!r} is {kinds[self._is_classification]}, but its metrics are of "
                f"{kinds[is_classification]}; give a head that has changed its kind another name"
            )


class RunMetrics:
    """The metrics of all heads, by ``head/metric``, and ``loss``, the mean loss of an example.

    A window ends with every step whose number is a multiple of ``window_steps``. ``window()`` tells of the last one
    that has ended, computed once for all callers, so hooks with different periods show the same numbers.

    Args:
        window_steps: Steps of a window.
        auc_exact_size: Rows up to which an AUC is exact, per head.
    """

    def __init__(self, *, window_steps: int = 100, auc_exact_size: int = 1_000_000) -> None:
        if window_steps < 1:
            raise ConfigError(f"window_steps must be at least 1, got {window_steps}")
        self._window_steps = window_steps
        self._auc_exact_size = auc_exact_size
        self._run = _Total(auc_exact_size)
        self._window = _Total(auc_exact_size)
        self._ended: _Total | None = None
        self._ended_values: dict[str, float] | None = None

    def update(self, result: StepResult) -> None:
        """Count one step.

        Raises:
            DataError: A prediction that counts is NaN or infinite; the text names the head.
            ConfigError: The restored metrics are of another kind of head.
        """
        for total in (self._run, self._window):  # restored ones may be from before a change of the model
            total.check_kinds(result)
        self._window.update(result)
        if result.step % self._window_steps == 0:
            self._run.merge(self._window)
            self._ended, self._ended_values = self._window, None
            self._window = _Total(self._auc_exact_size)

    def results(self) -> dict[str, float]:
        """Return the values over all steps counted."""
        whole = _Total(self._auc_exact_size)
        whole.merge(self._run)
        whole.merge(self._window)
        return whole.results()

    def window(self) -> dict[str, float]:
        """Return the values of the last window that has ended; of the first one so far before it ends."""
        if self._ended is not None:
            self._ended_values, self._ended = self._ended.results(), None
        return dict(self._ended_values) if self._ended_values is not None else self._window.results()

    def reset(self) -> None:
        """Forget everything."""
        self._run, self._window = _Total(self._auc_exact_size), _Total(self._auc_exact_size)
        self._ended = self._ended_values = None

    def state(self) -> dict[str, Any]:
        """Return the exact counts as JSON values; ``restore`` continues from them."""
        has_ended = self._ended is not None or self._ended_values is not None
        values = {name: None if math.isnan(value) else value for name, value in self.window().items()}
        return {"run": self._run.state(), "window": self._window.state(), "ended": values if has_ended else None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those of ``state``."""
        self._run.restore(state["run"])
        self._window.restore(state["window"])
        ended = state["ended"]
        self._ended = None
        self._ended_values = (
            None if ended is None else {name: math.nan if value is None else value for name, value in ended.items()}
        )


class _Total:
    """Loss and heads over some steps."""

    def __init__(self, auc_exact_size: int) -> None:
        self._auc_exact_size = auc_exact_size
        self._heads: dict[str, HeadMetrics] = {}
        self._loss = 0.0
        self._samples = 0

    def update(self, result: StepResult) -> None:
        for name, head in result.heads.items():
            if head.label is not None:
                self._head(name, head.is_classification).update(head)
        self._loss += result.loss * result.samples
        self._samples += result.samples

    def check_kinds(self, result: StepResult) -> None:
        for name, head in result.heads.items():
            known = self._heads.get(name)
            if known is not None and known.is_classification != head.is_classification and head.label is not None:
                HeadMetrics(name, is_classification=head.is_classification).check_kind(known.is_classification)

    def merge(self, other: _Total) -> None:
        for name, head in other._heads.items():
            self._head(name, head.is_classification).merge(head)
        self._loss += other._loss
        self._samples += other._samples

    def results(self) -> dict[str, float]:
        values = {"loss": self._loss / self._samples} if self._samples else {}
        for name, head in self._heads.items():
            values |= {f"{name}/{metric}": value for metric, value in head.results().items()}
        return values

    def state(self) -> dict[str, Any]:
        heads = {name: head.state() for name, head in self._heads.items()}
        return {"heads": heads, "loss": self._loss, "samples": self._samples}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._heads.clear()
        for name, saved in state["heads"].items():
            self._head(name, bool(saved["is_classification"])).restore(saved)
        self._loss, self._samples = float(state["loss"]), int(state["samples"])

    def _head(self, name: str, is_classification: bool) -> HeadMetrics:
        head = self._heads.get(name)
        if head is None:
            head = HeadMetrics(name, is_classification=is_classification, auc_exact_size=self._auc_exact_size)
            self._heads[name] = head
        return head
