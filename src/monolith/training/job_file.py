"""The job file of a model folder (``job.json``): task, options, labels, features and finished data of a job.

``JobFileHook`` writes it after the first step, so that a job that is refused earlier changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.core import storage
from monolith.core.durable_files import replace_file
from monolith.core.errors import ConfigError
from monolith.data.sources.patterns import expand
from monolith.training.config.job import DataConfig
from monolith.training.hooks import Hook
from monolith.training.job_data import reads_files
from monolith.training.run import Run, StepResult

__all__ = ["JobFileHook", "check_job", "digest_data", "read_job", "write_job"]

_JOB_FILE = "job.json"


class JobFileHook(Hook):
    """Calls ``write`` once: after the first step, or before the first checkpoint."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._has_written = False

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        self._write_once()

    @override
    def before_save(self, run: Run) -> None:
        self._write_once()

    def _write_once(self) -> None:
        if not self._has_written:
            self._write()
            self._has_written = True


def read_job(model_dir: str | Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the job of a model folder, or ``default`` if the folder has none.

    Raises:
        ConfigError: The folder has no job and there is no default, or the file is corrupt.
    """
    path = Path(model_dir) / _JOB_FILE
    if not str(model_dir) or not path.is_file():
        if default is not None:
            return default
        raise ConfigError(f"task is None and {path} does not exist; give --task, or a --model-dir that was trained")
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is corrupt ({error}); give --task and --task-options instead") from error
    return body


def write_job(model_dir: str | Path, body: Mapping[str, Any]) -> None:
    """Write the job of a model folder."""
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / _JOB_FILE, json.dumps(body, indent=1).encode() + b"\n")


def check_job(model_dir: str | Path, task: str | None, labels: Sequence[str]) -> None:
    """Refuse another task or other labels than those of the model folder.

    Raises:
        ConfigError: They differ; the text names both.
    """
    known, path = read_job(model_dir, default={}), Path(model_dir) / _JOB_FILE
    if not known:
        return
    if task is not None and _short_name(known["task"]) != _short_name(task):
        raise ConfigError(
            f"task is {task!r}, expected {known['task']!r} as in '{path}'; give another --model-dir for another task"
        )
    if labels and known["label_features"] and list(labels) != known["label_features"]:
        raise ConfigError(
            f"label_features is {list(labels)!r}, expected {known['label_features']!r} as in '{path}'; give another "
            "--model-dir for another label"
        )


def digest_data(config: DataConfig) -> str | None:
    """Return a digest of the files of a job and its number of passes; None for streams."""
    if config.data is None or not reads_files(config) or config.kafka.following.then is not None:  # a stream has no end
        return None
    files = [(os.path.abspath(path), storage.file_bytes(path)) for path in expand(config.data)]
    epochs = 1 if config.epochs is None else config.epochs
    return hashlib.sha256(json.dumps([epochs, files]).encode()).hexdigest()


def _short_name(task: str) -> str:
    """Return the class name of a task in lower case: its file may have moved."""
    return re.split(r"[.:/]", task)[-1].lower().replace("_", "").replace("-", "")
