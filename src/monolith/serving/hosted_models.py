"""The models of a server: found on disk, loaded in the background, swapped, and let go when nobody uses them.

Rules that hold at every moment:

- A version is asked for scores only after it was loaded and warmed up; one that fails is reported, and tried again a
  few times, or when its folder changes.
- A version goes only when its successor is there: when a version that shall be served is available and none of the
  others that shall be is still loading. So a model whose folder was emptied keeps what it has.
- A version whose load fails because others are missing (a ``ClusterError``) is tried again until they are there.
- A version is closed after the last request that uses it.

How requests arrive, and what models compute, is not known here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ModelNotFound, ModelNotReady
from monolith.core.throttle import throttled
from monolith.rpc.status import code_of, text_of
from monolith.serving.hosted_version import HostedVersion, State, VersionStatus
from monolith.serving.loaded_model import LoadedModel, Loader
from monolith.serving.model_config import ModelConfig, found_versions

__all__ = ["HostedModels"]

logger = logging.getLogger(__name__)

_REMEMBERED_ENDS = 16
_OTHERS_INTERVAL_S = 1.0
_LOAD_NICENESS = 10


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


@dataclass(frozen=True, slots=True)
class _Route:
    versions: Mapping[int, HostedVersion]
    newest: HostedVersion | None
    labels: Mapping[str, int]


class HostedModels:
    """Loads, swaps and unloads. All methods may be called from several threads.

    Args:
        loader: Loads the version in a folder.
        warm_up: Called with each loaded version before it is served; what it raises keeps the version out.
        clock: Times the retries.
        load_threads: Versions that are loaded or closed at the same time.
        load_retries: How often a failed load is tried again.
        retry_interval_s: How long it waits before that.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        warm_up: Callable[[HostedVersion], None] | None = None,
        clock: Clock | None = None,
        load_threads: int = 2,
        load_retries: int = 5,
        retry_interval_s: float = 60.0,
    ) -> None:
        self._loader = loader
        self._warm_up = warm_up
        self._clock = clock or SystemClock()
        self._load_retries = load_retries
        self._retry_interval_s = retry_interval_s
        self._pool = ThreadPoolExecutor(load_threads, thread_name_prefix="model-load", initializer=_go_behind_requests)
        self._changed = threading.Condition()
        self._models: dict[str, _Model] = {}
        self._routes: Mapping[str, _Route] = {}
        self._is_closed = False

    # --- for requests ---

    def acquire(self, name: str, version: int | None = None, label: str = "") -> HostedVersion:
        """Return a version for one request, which must ``leave`` it: the newest, unless version or label is given.

        Raises:
            ModelNotFound: There is no such model, version or label.
            ModelNotReady: No version of the model is loaded yet.
        """
        while True:
            found = _chosen(self._routes.get(name), name, version, label)
            if found.enter():
                return found
            with self._changed:
                pass  # it was retired by somebody who holds the lock until the routes are new

    def status(self, name: str, version: int | None = None, label: str = "") -> list[VersionStatus]:
        """Return the state of every version of a model that was heard of, newest first; or of the one that is named.

        Raises:
            ModelNotFound: There is no such model, version or label.
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
        """Return the same for all versions, and nothing where ``status`` raises."""
        with self._changed:
            model = self._models.get(name)
            found = {} if model is None else _statuses(model)
        return [found[version] for version in sorted(found, reverse=True)]

    def names(self) -> list[str]:
        """Return the names of the models that are configured."""
        with self._changed:
            return sorted(name for name, model in self._models.items() if not model.is_removed)

    @property
    def is_ready(self) -> bool:
        """Whether every model that is configured has a version that answers."""
        with self._changed:
            return all(model.serving for model in self._models.values() if not model.is_removed)

    # --- for who configures ---

    def configure(self, configs: Iterable[ModelConfig]) -> None:
        """Have these models and no others; returns after the folders were looked at, while versions load."""
        given = {config.name: config for config in configs}
        with self._changed:
            for name, model in self._models.items():
                model.is_removed = name not in given
            for name, config in given.items():
                model = self._models.setdefault(name, _Model(config))
                if (config.policy, config.base_path) != (model.config.policy, model.config.base_path):
                    model.pinned = None
                model.config = config
            self._settle_all()
        self.poll()

    def poll(self) -> None:
        """Look for versions that came or went, and begin what follows from it."""
        with self._changed:
            configs = {name: model.config for name, model in self._models.items() if not model.is_removed}
        found = {name: found_versions(config.base_path) for name, config in configs.items()}
        with self._changed:
            if self._is_closed:
                return
            for name, versions in found.items():
                model = self._models.get(name)
                if model is not None and model.config is configs[name] and not model.is_removed:
                    self._aspire(model, versions)
            self._settle_all()

    def wait_until_settled(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is loading; False when time ran out first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed or not any(model.loading for model in self._models.values()), timeout_s
            )

    def wait_until_unloaded(self, timeout_s: float | None = None) -> bool:
        """Wait until every version that goes is closed; False when time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(model.leaving for model in self._models.values()), timeout_s)

    def failures(self) -> list[tuple[str, VersionStatus]]:
        """Return the versions that shall be served and cannot, with the names of their models."""
        with self._changed:
            return [
                (name, failure.status)
                for name, model in sorted(self._models.items())
                for version, failure in sorted(model.failures.items())
                if version in model.wanted and version not in model.serving
            ]

    def close(self, timeout_s: float = 10.0) -> None:
        """Unload everything, after the requests under way; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            for model in self._models.values():
                model.is_removed = True
            self._settle_all()
        self.wait_until_unloaded(timeout_s)
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- inside; every method below is called with the lock, or from the pool ---

    def _aspire(self, model: _Model, found: Mapping[int, Path]) -> None:
        policy = model.config.policy
        if policy.kind == "latest_once":
            if model.pinned is None and found:
                model.pinned = policy.choose(found)
            chosen = tuple(version for version in model.pinned or () if version in found or version in model.serving)
        else:
            chosen = policy.choose(found)
        model.wanted = {version: found.get(version, model.config.base_path / str(version)) for version in chosen}
        for version in [version for version in model.failures if version not in found]:
            del model.failures[version]
        for version, path in model.wanted.items():
            served = model.serving.get(version)
            if version in model.loading or (served is not None and served.path == path):
                continue
            if self._may_try(model, version, path):
                model.loading[version] = (path, State.START)
                self._pool.submit(self._load, model, version, path)

    def _may_try(self, model: _Model, version: int, path: Path) -> bool:
        failure = model.failures.get(version)
        if failure is None:
            return True
        if failure.path != path or failure.stamp != _stamp(path):
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
            if known is None or known.status.message != text_of(error):  # not the same words every second
                logger.error("version failed to load model=%s version=%d error=%s", name, version, text_of(error))
            if loaded is not None:
                _close(loaded, name, version)
            with self._changed:
                self._note_failure(model, version, path, stamp, error)
            return
        seconds = self._clock.monotonic_s() - started_s
        logger.info("version loaded model=%s version=%d seconds=%.3f", name, version, seconds)
        with self._changed:
            del model.loading[version]
            model.failures.pop(version, None)
            model.ended.pop(version, None)
            before = model.serving.get(version)
            model.serving[version] = hosted
            if before is not None:
                self._let_go(model, before)
            self._settle_all()

    def _pace(self) -> contextlib.AbstractContextManager[None]:
        """Say how fast to load or close a version: without a rest while nothing is served."""
        is_alone = not any(model.serving for model in self._models.values())
        return contextlib.nullcontext() if is_alone else throttled(self._clock)

    def _note_failure(self, model: _Model, version: int, path: Path, stamp: int, error: Exception) -> None:
        del model.loading[version]
        before = model.failures.get(version)
        attempts = 1 if before is None or before.path != path else before.attempts + 1
        pause_s = self._retry_interval_s
        if isinstance(error, ClusterError):
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
            name: _Route(
                dict(model.serving),
                model.serving[max(model.serving)] if model.serving else None,
                dict(model.config.labels),
            )
            for name, model in self._models.items()
            if not model.is_removed
        }
        self._changed.notify_all()

    def _settle(self, model: _Model) -> None:
        has_successor = any(version in model.serving for version in model.wanted)
        is_settled = has_successor and not any(version in model.loading for version in model.wanted)
        for version, hosted in list(model.serving.items()):
            if model.is_removed or (version not in model.wanted and is_settled):
                del model.serving[version]
                self._let_go(model, hosted)

    def _let_go(self, model: _Model, hosted: HostedVersion) -> None:
        model.leaving.append(hosted)

        def unload() -> None:
            try:
                self._pool.submit(self._unload, model, hosted)
            except RuntimeError:  # the server was closed before this last request ended
                self._unload(model, hosted)

        # Later: the routes must not lead to it any more when it begins to refuse.
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


def _go_behind_requests() -> None:
    """Lower this thread's priority: a version that loads takes what requests leave of the cores."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # Linux has priorities of threads
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _LOAD_NICENESS))


def _chosen(route: _Route | None, name: str, version: int | None, label: str) -> HostedVersion:
    if route is None:
        raise ModelNotFound(f"model {name!r} is not served here; ask for one that is configured")
    if label:
        if label not in route.labels:
            raise ModelNotFound(f"model {name!r} has no label {label!r}; there are {sorted(route.labels)}")
        version = route.labels[label]
    found = route.newest if version is None else route.versions.get(version)
    if found is not None:
        return found
    if not route.versions:
        raise ModelNotReady(f"no version of model {name!r} is loaded yet; try again, or ask for its status")
    raise ModelNotFound(f"version {version} of model {name!r} is not served; there are {sorted(route.versions)}")


def _statuses(model: _Model) -> dict[int, VersionStatus]:
    found = {version: VersionStatus(version, State.END) for version in model.ended}
    found.update({each.version: VersionStatus(each.version, State.UNLOADING) for each in model.leaving})
    found.update({version: failure.status for version, failure in model.failures.items()})
    found.update({version: VersionStatus(version, state) for version, (_, state) in model.loading.items()})
    found.update({version: VersionStatus(version, State.AVAILABLE) for version in model.serving})
    return found


def _stamp(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _close(model: LoadedModel, name: str, version: int) -> None:
    try:
        model.close()
    except Exception:
        logger.exception("version did not close well model=%s version=%d", name, version)
