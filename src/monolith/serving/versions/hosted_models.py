"""Models of a server: ``HostedModels`` finds versions on disk, loads them in the background, swaps and unloads them.

Invariants:

- A version receives requests only after load and warm-up. A failed load is reported, and retried a few times, or when
  the folder changes.
- A version is unloaded only after its successor is available: at least one wanted version is served, and no wanted
  version is still loading. A model whose folder was emptied therefore keeps its versions.
- A load that fails with a ``ClusterError`` (a server of a sub-model is missing) is retried without limit.
- A version is closed after its last request.
- A version whose files turn out to be damaged while it is served is unloaded, and not loaded again until its folder
  changes.

Thread safe: one condition guards all state, and requests read an immutable routing table without it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, ModelNotFound, ModelNotReady
from monolith.core.throttle import throttled
from monolith.rpc.status import code_of, text_of
from monolith.serving.versions.base_path_report import describe_base_path
from monolith.serving.versions.hosted_version import HostedVersion, State, VersionStatus
from monolith.serving.versions.loaded_model import LoadedModel, Loader
from monolith.serving.versions.model_config import ModelConfig, found_versions, pull_versions

__all__ = ["HostedModels", "Route", "Routes"]

logger = logging.getLogger(__name__)

_REMEMBERED_ENDS = 16
_OTHERS_INTERVAL_S = 1.0
_SHORTAGE_S = 5.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)
_LOAD_NICENESS = 10
_EMPTY_WARNING_S = 60.0
"""Pause between warnings about a model whose folder has no version."""


@dataclass(slots=True)
class _Failure:
    path: Path
    stamp: int
    status: VersionStatus
    attempts: int
    next_s: float


@dataclass(slots=True)
class _Model:
    config: ModelConfig
    is_removed: bool = False
    wanted: dict[int, Path] = field(default_factory=dict)
    pinned: tuple[int, ...] | None = None
    loading: dict[int, tuple[Path, State]] = field(default_factory=dict)
    serving: dict[int, HostedVersion] = field(default_factory=dict)
    leaving: list[HostedVersion] = field(default_factory=list)
    failures: dict[int, _Failure] = field(default_factory=dict)
    ended: OrderedDict[int, None] = field(default_factory=OrderedDict)
    damaged: dict[int, tuple[Path, int]] = field(default_factory=dict)
    unverified: dict[int, float] = field(default_factory=dict)
    """Served version to the time of its next verification, after one that lacked descriptors or memory."""
    next_warning_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class Route:
    """Served versions of one model."""

    versions: Mapping[int, HostedVersion]
    newest: HostedVersion | None
    labels: Mapping[str, int]


Routes: TypeAlias = Mapping[str, Route]
"""Served versions by model name. Replaced as a whole, never changed."""


class HostedModels:
    """Loads, swaps and unloads versions. Thread safe.

    Args:
        loader: Loads the version in a folder.
        warm_up: Called with each loaded version before it is served; an exception fails the load.
        verify: Called in the background with each version after it is served, and a function that returns whether the
            version is still wanted. An exception unloads the version, and the previous one returns. A lack of file
            descriptors or memory does not prove damage. The version stays, and is verified again later.
        clock: Clock of the retries.
        load_threads: Versions loaded or closed in parallel.
        load_retries: Retries of a failed load.
        retry_interval_s: Pause before a retry.
        on_routes: Called with the routing table whenever it is replaced.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        warm_up: Callable[[HostedVersion], None] | None = None,
        verify: Callable[[HostedVersion, Callable[[], bool]], None] | None = None,
        clock: Clock | None = None,
        load_threads: int = 2,
        load_retries: int = 5,
        retry_interval_s: float = 60.0,
        on_routes: Callable[[Routes], None] | None = None,
    ) -> None:
        self._loader = loader
        self._warm_up = warm_up
        self._verify = verify
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix="model-verify", initializer=_lower_priority)
        self._clock = clock or SystemClock()
        self._load_retries = load_retries
        self._retry_interval_s = retry_interval_s
        self._pool = ThreadPoolExecutor(load_threads, thread_name_prefix="model-load", initializer=_lower_priority)
        self._changed = threading.Condition()
        self._scanning = threading.Lock()
        self._models: dict[str, _Model] = {}
        self._routes: Mapping[str, Route] = {}
        self._is_closed = False
        self._on_routes = on_routes

    # --- requests ---

    def acquire(self, name: str, version: int | None = None, label: str = "") -> HostedVersion:
        """Return a version for one request: the newest, or the one of ``version`` or ``label``.

        The caller must call ``leave`` afterwards.

        Raises:
            ModelNotFound: The model, version or label does not exist.
            ModelNotReady: No version of the model is loaded yet.
        """
        while True:
            hosted = _choose(self._routes.get(name), name, version, label)
            if hosted.enter():
                return hosted
            with self._changed:
                pass  # the thread that retired the version holds the lock until the routes are updated

    def status(self, name: str, version: int | None = None, label: str = "") -> list[VersionStatus]:
        """Return the state of every known version of a model, newest first; or of the named version.

        Raises:
            ModelNotFound: The model, version or label does not exist.
        """
        found = self.statuses(name)
        if not found:
            raise ModelNotFound(f"could not find any versions of model {name!r}; check its name and its base path")
        if label:
            route = self._routes.get(name)
            if route is None or label not in route.labels:
                raise ModelNotFound(f"model {name!r} has no label {label!r}")
            version = route.labels[label]
        chosen = [each for each in found if version is None or each.version == version]
        if not chosen:
            known = [each.version for each in found]
            raise ModelNotFound(f"could not find version {version} of model {name!r}; there are {known}")
        return chosen

    def statuses(self, name: str) -> list[VersionStatus]:
        """Return the state of all versions; an empty list for an unknown model."""
        with self._changed:
            model = self._models.get(name)
            found = {} if model is None else _statuses(model)
        return [found[version] for version in sorted(found, reverse=True)]

    def names(self) -> list[str]:
        """Return the names of the configured models."""
        with self._changed:
            return sorted(name for name, model in self._models.items() if not model.is_removed)

    @property
    def is_ready(self) -> bool:
        """Whether every configured model has a served version."""
        with self._changed:
            return all(model.serving for model in self._models.values() if not model.is_removed)

    # --- configuration ---

    def configure(self, configs: Iterable[ModelConfig]) -> None:
        """Replace the set of models. Returns after scanning the folders, while versions load.

        Raises:
            ConfigError: The driver of a URL is missing. The other models are scanned.
        """
        given = {config.name: config for config in configs}
        with self._changed:
            for name, model in self._models.items():
                model.is_removed = name not in given
            for name, config in given.items():
                model = self._models.setdefault(name, _Model(config))
                if (config.policy, config.base_path) != (model.config.policy, model.config.base_path):
                    model.pinned = None
                    model.next_warning_s = -math.inf
                model.config = config
            self._settle_all()
        self.poll()

    def poll(self) -> None:
        """Scan the folders, and start loads and unloads.

        Raises:
            ConfigError: The driver of a URL is missing. The other models are scanned.
        """
        with self._scanning:  # an older scan never replaces a newer one
            self._poll()

    def _poll(self) -> None:
        with self._changed:
            configs = {name: model.config for name, model in self._models.items() if not model.is_removed}
        refusals: list[ConfigError] = []
        for config in configs.values():
            try:
                pull_versions(config)
            except ConfigError as error:  # the other models keep their scans
                refusals.append(error)
        found = {name: found_versions(config.base_path) for name, config in configs.items()}
        written = self._find_written()
        stamps = self._read_stamps(written)
        unserved: list[ModelConfig] = []
        with self._changed:
            if self._is_closed:
                return
            for each in self._models.values():
                self._verify_again(each, written, stamps)
            for name, versions in found.items():
                model = self._models.get(name)
                if model is not None and model.config is configs[name] and not model.is_removed:
                    self._aspire(model, versions, stamps)
                    if not versions and not model.serving and self._must_warn(model):
                        unserved.append(model.config)
            self._settle_all()
        for config in unserved:
            logger.warning("no version to serve model=%s reason=%s", config.name, describe_base_path(config.base_path))
        if refusals:
            raise refusals[0]

    def wait_until_settled(self, timeout_s: float | None = None) -> bool:
        """Wait until no version is loading; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed or not any(model.loading for model in self._models.values()), timeout_s
            )

    def wait_until_unloaded(self, timeout_s: float | None = None) -> bool:
        """Wait until all unloads are complete; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(model.leaving for model in self._models.values()), timeout_s)

    def failures(self) -> list[tuple[str, VersionStatus]]:
        """Return model name and status of every wanted version that failed to load."""
        with self._changed:
            return [
                (name, failure.status)
                for name, model in sorted(self._models.items())
                for version, failure in sorted(model.failures.items())
                if version in model.wanted and version not in model.serving
            ]

    def close(self, timeout_s: float = 10.0) -> None:
        """Unload all versions after their current requests. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            for model in self._models.values():
                model.is_removed = True
            self._settle_all()
        self.wait_until_unloaded(timeout_s)
        self._verifier.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- internals of a scan: read the disk, which may be slow, without the lock ---

    def _find_written(self) -> set[HostedVersion]:
        """Return the served versions whose files were written to since the last call."""
        if self._verify is None:
            return set()
        with self._changed:
            served = [hosted for model in self._models.values() for hosted in model.serving.values()]
        written = set()
        for hosted in served:
            notice = getattr(hosted.model, "notice_file_changes", None)  # models without files have none
            if notice is not None and notice():
                logger.warning("files of a served version changed model=%s version=%d", hosted.name, hosted.version)
                written.add(hosted)
        return written

    def _read_stamps(self, written: Iterable[HostedVersion]) -> dict[Path, int]:
        """Return the stamps of written, unverified, failed and damaged versions."""
        paths = {hosted.path for hosted in written}
        with self._changed:
            for model in self._models.values():
                paths.update(model.serving[version].path for version in model.unverified if version in model.serving)
                paths.update(failure.path for failure in model.failures.values())
                paths.update(path for path, _ in model.damaged.values())
        return {path: _stamp(path) for path in paths}

    # --- internals: every method below runs with the lock, or in the pool ---

    def _aspire(self, model: _Model, found: Mapping[int, Path], stamps: Mapping[Path, int]) -> None:
        policy = model.config.policy
        found = {version: path for version, path in found.items() if not self._is_damaged(model, version, path, stamps)}
        if policy.kind == "latest_once":
            if model.pinned is None and found:
                model.pinned = policy.choose(found)
            chosen = tuple(version for version in model.pinned or () if version in found or version in model.serving)
        else:
            chosen = policy.choose(found)
        model.wanted = {version: found.get(version, model.config.base_path / str(version)) for version in chosen}
        for version in [each for each in model.failures if each not in found and each not in model.damaged]:
            del model.failures[version]
        for version, path in model.wanted.items():
            served = model.serving.get(version)
            if version in model.loading or (served is not None and served.path == path):
                continue
            if self._may_try(model, version, path, stamps):
                model.loading[version] = (path, State.START)
                self._pool.submit(self._load, model, version, path)

    def _must_warn(self, model: _Model) -> bool:
        """Return whether a warning about the folder without versions is due; the next one is due a minute later."""
        now_s = self._clock.monotonic_s()
        if now_s < model.next_warning_s:
            return False
        model.next_warning_s = now_s + _EMPTY_WARNING_S
        return True

    def _is_damaged(self, model: _Model, version: int, path: Path, stamps: Mapping[Path, int]) -> bool:
        damaged = model.damaged.get(version)
        if damaged is None:
            return False
        if damaged == (path, stamps.get(path, damaged[1])):  # without a stamp, it was found after the scan began
            return True
        del model.damaged[version]
        model.failures.pop(version, None)
        return False

    def _may_try(self, model: _Model, version: int, path: Path, stamps: Mapping[Path, int]) -> bool:
        failure = model.failures.get(version)
        if failure is None:
            return True
        if failure.path != path or failure.stamp != stamps.get(path, failure.stamp):
            del model.failures[version]
            return True
        return failure.attempts <= self._load_retries and self._clock.monotonic_s() >= failure.next_s

    def _load(self, model: _Model, version: int, path: Path) -> None:
        with self._changed:
            if model.is_removed or self._is_closed:
                del model.loading[version]
                self._settle_all()
                return
            model.loading[version] = (path, State.LOADING)
            pace = self._pace()
        name, stamp = model.config.name, _stamp(path)
        started_s = self._clock.monotonic_s()
        loaded: LoadedModel | None = None
        try:
            with pace:
                loaded = self._loader(path)
                hosted = HostedVersion(
                    name, version, path, loaded, log_rate=model.config.log_rate, log_prefix=model.config.log_prefix
                )
                if self._warm_up is not None:
                    self._warm_up(hosted)
        except Exception as error:
            known = model.failures.get(version)
            if known is None or known.status.message != text_of(error):  # log an error once, not at every retry
                logger.error("version failed to load model=%s version=%d error=%s", name, version, text_of(error))
            if loaded is not None:
                _close(loaded, name, version)
            with self._changed:
                self._note_failure(model, version, path, stamp, error)
            return
        seconds = self._clock.monotonic_s() - started_s
        logger.info("version loaded model=%s version=%d seconds=%.3f", name, version, seconds)
        with self._changed:
            is_wanted = not self._is_closed
            if is_wanted:
                self._show(model, hosted, stamp)
        if not is_wanted:  # the pool, which unloads versions, is shut down
            _close(loaded, name, version)
            with self._changed:
                del model.loading[version]
                self._settle_all()

    def _show(self, model: _Model, hosted: HostedVersion, stamp: int) -> None:
        del model.loading[hosted.version]
        model.failures.pop(hosted.version, None)
        model.ended.pop(hosted.version, None)
        before = model.serving.get(hosted.version)
        model.serving[hosted.version] = hosted
        if before is not None:
            self._retire(model, before)
        self._settle_all()
        if self._verify is not None:
            self._verifier.submit(self._check_served, model, hosted, stamp)

    def _verify_again(self, model: _Model, written: Collection[HostedVersion], stamps: Mapping[Path, int]) -> None:
        """Verify served versions again whose files were written to, or whose verification lacked resources."""
        now_s = self._clock.monotonic_s()
        for hosted in model.serving.values():
            is_due = model.unverified.get(hosted.version, math.inf) <= now_s
            if (is_due or hosted in written) and hosted.path in stamps:
                model.unverified.pop(hosted.version, None)
                self._verifier.submit(self._check_served, model, hosted, stamps[hosted.path])

    def _check_served(self, model: _Model, hosted: HostedVersion, stamp: int) -> None:
        """Verify a served version; unload it if it is damaged."""
        assert self._verify is not None
        if not hosted.enter():
            return

        def is_wanted() -> bool:
            return model.serving.get(hosted.version) is hosted and not self._is_closed

        is_damaged = False
        try:
            with throttled(self._clock):
                self._verify(hosted, is_wanted)
        except Exception as error:
            text = text_of(error)
            if _is_shortage(error):
                logger.warning(
                    "served version not verified, retrying model=%s version=%d error=%s",
                    hosted.name,
                    hosted.version,
                    text,
                )
                with self._changed:
                    model.unverified[hosted.version] = self._clock.monotonic_s() + _SHORTAGE_S
                return
            logger.error(
                "served version damaged, unloading model=%s version=%d error=%s", hosted.name, hosted.version, text
            )
            with self._changed:
                if is_damaged := is_wanted():
                    del model.serving[hosted.version]
                    model.damaged[hosted.version] = (hosted.path, stamp)
                    status = VersionStatus(hosted.version, State.END, code_of(error), text)
                    model.failures[hosted.version] = _Failure(hosted.path, stamp, status, self._load_retries + 1, 0.0)
                    self._retire(model, hosted)
                    self._settle_all()
        finally:
            hosted.leave()
        if is_damaged:  # a scan finds the previous version; it may wait for a download
            self.poll()

    def _pace(self) -> contextlib.AbstractContextManager[None]:
        """Return the throttle of a load or unload; no throttle while no version is served."""
        is_alone = not any(model.serving for model in self._models.values())
        return contextlib.nullcontext() if is_alone else throttled(self._clock)

    def _note_failure(self, model: _Model, version: int, path: Path, stamp: int, error: Exception) -> None:
        del model.loading[version]
        before = model.failures.get(version)
        attempts = 1 if before is None or before.path != path else before.attempts + 1
        pause_s = self._retry_interval_s
        if isinstance(error, ClusterError) or _is_shortage(error):
            attempts, pause_s = 0, min(pause_s, _OTHERS_INTERVAL_S)
        status = VersionStatus(version, State.END, code_of(error), text_of(error))
        model.failures[version] = _Failure(path, stamp, status, attempts, self._clock.monotonic_s() + pause_s)
        self._settle_all()

    def _settle_all(self) -> None:
        for name, model in list(self._models.items()):
            self._settle(model)
            if model.is_removed and not (model.loading or model.serving or model.leaving):
                del self._models[name]
        self._routes = {
            name: Route(
                dict(model.serving),
                model.serving[max(model.serving)] if model.serving else None,
                dict(model.config.labels),
            )
            for name, model in self._models.items()
            if not model.is_removed
        }
        if self._on_routes is not None:
            self._on_routes(self._routes)
        self._changed.notify_all()

    def _settle(self, model: _Model) -> None:
        has_successor = any(version in model.serving for version in model.wanted)
        is_settled = has_successor and not any(version in model.loading for version in model.wanted)
        for version, hosted in list(model.serving.items()):
            if model.is_removed or (version not in model.wanted and is_settled):
                del model.serving[version]
                self._retire(model, hosted)

    def _retire(self, model: _Model, hosted: HostedVersion) -> None:
        model.leaving.append(hosted)

        def unload() -> None:
            try:
                self._pool.submit(self._unload, model, hosted)
            except RuntimeError:  # the pool was shut down before the last request ended
                self._unload(model, hosted)

        # In the pool, so that the routes are updated before the version refuses requests.
        self._pool.submit(hosted.retire, unload)

    def _unload(self, model: _Model, hosted: HostedVersion) -> None:
        with self._changed:
            pace = self._pace()
        with pace:
            _close(hosted.model, hosted.name, hosted.version)
        logger.info("version unloaded model=%s version=%d", hosted.name, hosted.version)
        with self._changed:
            model.leaving.remove(hosted)
            model.ended[hosted.version] = None
            while len(model.ended) > _REMEMBERED_ENDS:
                model.ended.popitem(last=False)
            self._settle_all()


def _lower_priority() -> None:
    """Lower this thread's priority, so that loading does not delay requests."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # per-thread priorities exist on Linux only
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _LOAD_NICENESS))


def _choose(route: Route | None, name: str, version: int | None, label: str) -> HostedVersion:
    if route is None:
        raise ModelNotFound(f"model is {name!r}, expected a configured model")
    if label:
        if label not in route.labels:
            raise ModelNotFound(f"model {name!r} has no label {label!r}; there are {sorted(route.labels)}")
        version = route.labels[label]
    hosted = route.newest if version is None else route.versions.get(version)
    if hosted is not None:
        return hosted
    if not route.versions:
        raise ModelNotReady(f"no version of model {name!r} is loaded yet; retry, or request its status")
    raise ModelNotFound(f"version {version} of model {name!r} is not served; there are {sorted(route.versions)}")


def _statuses(model: _Model) -> dict[int, VersionStatus]:
    found = {version: VersionStatus(version, State.END) for version in model.ended}
    found.update({each.version: VersionStatus(each.version, State.UNLOADING) for each in model.leaving})
    found.update({version: failure.status for version, failure in model.failures.items()})
    found.update({version: VersionStatus(version, state) for version, (_, state) in model.loading.items()})
    found.update({version: VersionStatus(version, State.AVAILABLE) for version in model.serving})
    return found


def _is_shortage(error: BaseException | None) -> bool:
    """Return True if the process lacked descriptors or memory, which tells nothing about the files."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def _stamp(path: Path) -> int:
    """Return a number that changes when a file of the folder does."""
    try:
        found = [(name, os.stat(name)) for name in (path, *sorted(path.rglob("*")))]
    except OSError:
        return 0
    return hash(tuple((str(name), each.st_size, each.st_mtime_ns) for name, each in found))


def _close(model: LoadedModel, name: str, version: int) -> None:
    try:
        model.close()
    except Exception:
        logger.exception("version failed to close model=%s version=%d", name, version)
