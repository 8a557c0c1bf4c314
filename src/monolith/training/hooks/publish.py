"""Publish rows and dense weights of one step boundary, periodically.

Training waits while changed rows and the dense weights are copied; another thread writes them. Ranks that step together
write their rows in the thread of the loop, at the same step boundary; see :mod:`publish_ranks`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from monolith.artifacts.checkpoint_manifest import read_manifest
from monolith.artifacts.delta_log import Cut, Flavour
from monolith.artifacts.remote_folder import local_path
from monolith.core.errors import CheckpointMissing, ConfigError, MonolithError
from monolith.core.storage import is_url
from monolith.embedding import MultiTable
from monolith.embedding.ranks.rank_store import RankStore
from monolith.nn import GpuStore
from monolith.sync.publisher import LocalRowLog, LogPositions, Publisher, RowLogs
from monolith.telemetry import names
from monolith.training.checkpoints.files import TABLES
from monolith.training.config.publish import PublishConfig
from monolith.training.hooks.base import Hook
from monolith.training.hooks.event_stages import measure_stages, trained_rows
from monolith.training.hooks.publish_ranks import RankPublisher
from monolith.training.run import Run, StepResult

if TYPE_CHECKING:
    from monolith.sync.feed_server import FeedServer
    from monolith.sync.push_sender import Export
    from monolith.sync.remote_feed import FeedUpload

__all__ = ["PublishHook", "copied_weights", "stream_of"]

logger = logging.getLogger(__name__)


class PublishHook(Hook):
    """Publishes at the start, every so often, with every checkpoint, and at the end.

    A failed publish is logged, and the next one covers it. Once a checkpoint is safe, the log drops the segments before
    it.

    Args:
        folder: Folder or URL to publish to; servers read it. Of a URL, cuts are written locally, then uploaded.
        every_s: Seconds from one publish to the next.
        flavour: The form of the rows; see ``PublishConfig``.
        rows: Opens the logs of rows in other processes; takes the lock that pauses the run between two steps.
        stream: Opens the feed of the folder for servers that cannot read it, from the start of the run to its end.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        every_s: float = 1.0,
        flavour: Flavour = "serving",
        rows: Callable[[AbstractContextManager[None]], RowLogs] | None = None,
        stream: Callable[[], FeedServer] | None = None,
    ) -> None:
        if not every_s > 0:
            raise ConfigError(f"every_s is {every_s}; give a positive number of seconds")
        self._folder = local_path(folder)
        self._url = os.fspath(folder) if is_url(os.fspath(folder)) else ""
        self._upload: FeedUpload | None = None
        self._every_s = every_s
        self._flavour: Flavour = flavour
        self._open_rows = rows
        self._open_stream = stream
        self._stream: FeedServer | None = None
        self._publisher: Publisher | None = None
        self._ranks: RankPublisher | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._saved: dict[int, LogPositions] = {}
        self._exported_s = -math.inf
        self.export: Export | None = None
        """Receives the metrics of publishing; set before the run."""

    @override
    def on_start(self, run: Run) -> None:
        """Publish the restored state, and start the publishing thread."""
        if isinstance(run.store, RankStore):
            self._start_ranks(run, run.store)
            return
        rows = self._rows(run)
        self._publisher = Publisher(self._folder, rows, lambda: copied_weights(run.model), clock=run.clock)
        self._publisher.events.on_publish = self._note_publish
        self._publisher.publish()
        self._start_feeds()
        self._ended.clear()
        self._thread = threading.Thread(target=self._go_on, args=(run,), name="publish", daemon=True)
        self._thread.start()

    def _start_ranks(self, run: Run, store: RankStore) -> None:
        self._ranks = RankPublisher(
            self._folder,
            store.tables,
            store.connection.steps,
            lambda: copied_weights(run.model),
            every_s=self._every_s,
            clock=run.clock,
            flavour=self._flavour,
        )
        self._publisher = self._ranks.publisher
        self._ranks.publish(run.step)
        if store.connection.is_chief:
            self._start_feeds()

    def _start_feeds(self) -> None:
        """Start to serve the folder over gRPC, and to upload it, where the settings ask for that."""
        if self._open_stream is not None:
            self._stream = self._open_stream()
            self._stream.start()
        if self._url:
            from monolith.sync.remote_feed import FeedUpload

            self._upload = FeedUpload(self._folder, self._url, every_s=self._every_s)
            self._upload.start()

    def _stop_feeds(self) -> None:
        upload, self._upload = self._upload, None
        if self._stream is not None:
            self._stream.stop()
        if upload is not None:
            upload.close()

    def _rows(self, run: Run) -> RowLogs:
        between_steps = _BetweenSteps(run)
        if self._open_rows is not None:
            return self._open_rows(between_steps)
        if isinstance(run.store, GpuStore):
            up_to_date = _UpToDate(between_steps, run.store)
            tables = run.store.host_tables()
            return LocalRowLog(self._folder, tables, clock=run.clock, lock=up_to_date, flavour=self._flavour)
        if not isinstance(run.store, MultiTable):
            raise ConfigError(
                f"publish_dir is {str(self._folder)!r}, and the rows are in a {type(run.store).__name__}, which has no "
                "delta log here; leave publish_dir out"
            )
        return LocalRowLog(self._folder, run.store, clock=run.clock, lock=between_steps, flavour=self._flavour)

    def _go_on(self, run: Run) -> None:
        due_s = run.clock.monotonic_s()
        while True:
            now_s = run.clock.monotonic_s()
            due_s = max(due_s + self._every_s, now_s)  # from start to start; missed publishes are not repeated
            if self._ended.wait(due_s - now_s):
                return
            self._try_publish()

    @property
    def folder(self) -> Path:
        """The published folder."""
        return self._folder

    def publish_now(self) -> Cut:
        """Publish the changes so far; return the newest cut. Call it from any thread during the run.

        Raises:
            OSError: A file could not be written; the next publish contains the changes.
            ConfigError: The run has ended, or its ranks publish together.
        """
        publisher = self._publisher
        if publisher is None or self._ranks is not None:
            raise ConfigError("no publisher is open in this process; ask the chief while the run trains")
        publisher.publish()
        assert publisher.newest is not None
        return publisher.newest

    def _try_publish(self) -> LogPositions | None:
        assert self._publisher is not None
        try:
            return self._publisher.publish()
        except Exception as error:  # an unexpected class must not stop the thread
            logger.error("publish failed, retrying folder=%s error=%s", self._folder, error)
            return None

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        """Export the age of the newest cut and the liveness of the thread, once a second."""
        if self._ranks is not None and self._ranks.is_due(run.step):
            with run.between_steps():
                self._ranks.publish(run.step)
        self._note_events(run, result)
        now_s = run.clock.monotonic_s()
        if self.export is None or self._publisher is None or now_s < self._exported_s + 1.0:
            return
        self._exported_s = now_s
        newest = self._publisher.newest
        if newest is not None:
            self.export(names.PUBLISH_AGE_SECONDS, max(0.0, run.clock.now_s() - newest.published_at_s), ())
        is_alive = self._ranks is not None or (self._thread is not None and self._thread.is_alive())
        self.export(names.BACKGROUND_THREAD_UP, float(is_alive), ("publish",))

    def _note_events(self, run: Run, result: StepResult) -> None:
        """Keep the event times of the step for the next cut, and export the stages of a sample of its rows."""
        if self._publisher is None:
            return
        now_s = run.clock.now_s()
        rows = trained_rows(result.batch, now_s)
        if rows is None:
            return
        self._publisher.events.add(rows)
        if self.export is None:
            return
        for stage, seconds in measure_stages(result.batch, now_s):
            self.export(names.EVENT_STAGE_SECONDS, max(0.0, seconds), (stage,))
            if seconds < 0:
                self.export(names.CLOCK_SKEW_TOTAL, 1, (stage,))

    def _note_publish(self, seconds: float) -> None:
        if self.export is not None:
            self.export(names.EVENT_STAGE_SECONDS, seconds, ("publish",))

    @override
    def before_save(self, run: Run) -> None:
        """Publish, so that the log has a segment of the checkpoint's state."""
        if self._ranks is not None:
            with run.between_steps():
                self._ranks.before_save(run.step)
            return
        state = self._try_publish()
        if state is not None:
            self._saved[run.step] = state

    @override
    def after_save(self, run: Run, path: Path) -> None:
        """Let the log begin with the checkpoint."""
        try:
            step = read_manifest(path).step
        except CheckpointMissing:  # retention removed it; the log begins with a later one
            return
        if self._ranks is not None:
            self._ranks.after_save(step, path / TABLES)
            return
        state = self._saved.pop(step, None)
        self._saved = {other: each for other, each in self._saved.items() if other > step}
        if state is None or self._publisher is None:
            return
        try:
            self._publisher.rebase(path / TABLES, state)
        except (MonolithError, OSError) as error:
            logger.warning("log compaction failed path=%s error=%s", path, error)

    @override
    def before_end(self, run: Run) -> None:
        if self._ranks is not None:
            self._ranks.publish(run.step)  # the steps are applied; on_end may not be collective

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Publish the last step, unless the run failed, and release the folder."""
        if self._ranks is not None:
            self._ranks.close()
            self._stop_feeds()
            self._publisher = self._ranks = self._stream = None
            return
        if self._publisher is None:
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if error is None:
                self._publisher.publish()
        finally:
            self._publisher.close()
            self._stop_feeds()
            self._publisher = self._thread = self._stream = None


def stream_of(config: PublishConfig) -> Callable[[], FeedServer] | None:
    """Return a function that opens the configured feed; None when no feed is configured."""
    folder, port = config.publish_dir, config.publish_port
    if folder is None or port is None:
        return None

    def open_stream() -> FeedServer:
        from monolith.rpc.security import Security, read_token
        from monolith.sync.feed_server import FeedServer

        token = read_token(config.publish_token_file, "publish_token_file")
        paths = [config.publish_tls_cert, config.publish_tls_key, config.publish_tls_ca]
        cert, key, authority = (None if path is None else Path(path) for path in paths)
        security = Security(cert_file=cert, key_file=key, ca_file=authority, token=token)
        return FeedServer(local_path(folder), host=config.publish_host, port=port, security=security)

    return open_stream


class _BetweenSteps(AbstractContextManager[None]):
    """Holds a run between two steps while it is entered, any number of times."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._held: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        held = self._run.between_steps()
        held.__enter__()
        self._held.append(held)

    def __exit__(self, *error: Any) -> None:
        self._held.pop().__exit__(*error)


class _UpToDate(AbstractContextManager[None]):
    """Holds a run between two steps, with the changes of its GPU tables in host memory."""

    def __init__(self, between_steps: AbstractContextManager[None], store: GpuStore) -> None:
        self._between_steps, self._store = between_steps, store

    def __enter__(self) -> None:
        self._between_steps.__enter__()
        try:
            self._store.host_tables()
        except BaseException:
            self._between_steps.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self._between_steps.__exit__(*error)


def copied_weights(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of a model's dense weights, by the names that a checkpoint gives them.

    Raises:
        ConfigError: A weight has a type that cannot be published.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue
        try:
            found[name] = np.array(value.detach().cpu().numpy(), order="C")
        except TypeError as error:
            raise ConfigError(f"weight {name!r} is {value.dtype}, which cannot be published; cast it") from error
    return found
