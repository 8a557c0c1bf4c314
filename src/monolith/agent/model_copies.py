"""Copy an item-embedding model from a peer-to-peer folder to the folder that servers read.

Main type: ``ModelCopies``.

::

    <p2p>/<model>@<version>/<model>/<sub_model>/<version>/...     source
    <p2p>/<model>@<version>.write.done                            marker: the source is complete
    <p2p>/<model>@<version>.read.lock                             lock: a reader copies it
    <receive>/<model>/<sub_model>/<version>                       target; ``-temp`` is appended while copying

Invariants: a version appears in the target when all its sub-models are copied. Versions compare as numbers where they
are numbers. Only own locks are removed, and locks of others that are older than the wait limit. Only
``<receive>/<model>`` is ever deleted.

Threading: one thread copies newer versions in the background. ``stop`` wakes all waits.
"""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ConfigError

__all__ = ["CopyTimes", "ModelCopies"]

logger = logging.getLogger(__name__)

_DONE, _LOCK, _TEMPORARY = ".write.done", ".read.lock", "-temp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """Waits of ``ModelCopies``, in seconds."""

    start_limit_s: float = 1200.0
    """Longest wait for the first version; also the age from which a lock of another process is stale."""
    start_pause_s: float = 10.0
    round_pause_s: float = 30.0


class ModelCopies:
    """Keeps copies of the newest versions of one model.

    Args:
        model_name: The model; None = there is nothing to copy.
        source: Peer-to-peer folder.
        receive: Folder that servers read.
        keeps: Number of versions that stay.
        times: Waits.
        clock: Measures them.

    Raises:
        ConfigError: A folder is not set, or the receive folder is the root.
    """

    def __init__(
        self,
        model_name: str | None,
        source: str | None,
        receive: str | None,
        *,
        keeps: int = 5,
        times: CopyTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._model = model_name
        self._keeps = keeps
        self._times = times or CopyTimes()
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent-model-copies", daemon=True)
        self._versions: list[str] = []
        self._copied_at_s: float | None = None
        self._failed_rounds = 0
        if model_name is None:
            return
        for field, value in (("rough_sort_model_p2p_path", source), ("rough_sort_model_local_path", receive)):
            if not value or Path(value).resolve() == Path("/"):
                raise ConfigError(
                    f"{field} is {value!r}, expected a folder below /; set it beside rough_sort_model_name"
                )
        if "/" in model_name or "@" in model_name or model_name in ("", ".", ".."):
            raise ConfigError(
                f"rough_sort_model_name is {model_name!r}, expected a name without '/' and '@'; rename it"
            )
        self._source = Path(str(source))
        self._target = Path(str(receive)) / model_name

    # --- metrics ---

    @property
    def newest_version(self) -> str | None:
        """The newest version that was copied."""
        return self._versions[-1] if self._versions else None

    @property
    def version_delay_s(self) -> float | None:
        """Age of the newest version, whose number is a time in seconds; None without one."""
        newest = self.newest_version
        return None if newest is None or not newest.isdigit() else self._clock.now_s() - int(newest)

    @property
    def update_delay_s(self) -> float | None:
        """Seconds since the last copy."""
        return None if self._copied_at_s is None else self._clock.now_s() - self._copied_at_s

    @property
    def failed_rounds(self) -> int:
        """Rounds that failed since the start."""
        return self._failed_rounds

    # --- running ---

    def start(self) -> None:
        """Copy the first version, then copy newer ones in the background.

        Raises:
            ConfigError: No complete version appeared within the start limit.
        """
        if self._model is None:
            return
        if self._target.exists():
            shutil.rmtree(self._target)
        deadline = Deadline(self._clock, self._times.start_limit_s)
        while not self._round():
            if deadline.is_past:
                raise ConfigError(
                    f"rough_sort_model_p2p_path is {str(self._source)!r}, which had no complete version of "
                    f"{self._model!r} for {self._times.start_limit_s:g} s; check the peer-to-peer copy and its marker"
                )
            if self._stopped.wait(min(self._times.start_pause_s, deadline.remaining_s() or 0.001)):
                return
        self._thread.start()

    def stop(self) -> None:
        """End the background copy; a second call does nothing."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stopped.wait(self._times.round_pause_s):
            self._round()

    def _round(self) -> bool:
        """Copy the newest complete version if it is new; return True if a copy exists."""
        locks: list[Path] = []
        try:
            try:
                candidates = self._lock_candidates(locks)
                if candidates:
                    newest = max(candidates, key=_version_key)
                    known = self.newest_version
                    if known is None or _version_key(newest) > _version_key(known):
                        self._copy(newest, candidates[newest])
                self._remove_old()
            finally:
                self._remove_locks(locks)
        except OSError as error:
            self._failed_rounds += 1
            logger.warning("model copy failed, retrying model=%s error=%s", self._model, error)
        return bool(self._versions)

    def _lock_candidates(self, locks: list[Path]) -> dict[str, list[Path]]:
        """Lock the versions of the model; return those that are complete, with the folders of their sub-models."""
        candidates: dict[str, list[Path]] = {}
        if not self._source.is_dir():
            return candidates
        for folder in sorted(self._source.iterdir()):
            name, _, version = folder.name.partition("@")
            if name != self._model or not version or "@" in version or not folder.is_dir():
                continue
            lock = self._source / f"{folder.name}{_LOCK}"
            try:
                lock.touch(exist_ok=False)
                locks.append(lock)
            except FileExistsError:
                pass  # another reader has it
            if not (self._source / f"{folder.name}{_DONE}").exists():
                continue
            model_folder = folder / name
            sub_models = (
                sorted(each for each in model_folder.iterdir() if each.is_dir()) if model_folder.is_dir() else []
            )
            if sub_models and all((each / version).is_dir() for each in sub_models):
                candidates[version] = sub_models
        return candidates

    def _copy(self, version: str, sub_models: list[Path]) -> None:
        temporaries: dict[Path, Path] = {}
        try:
            for sub_model in sub_models:
                target = self._target / sub_model.name / version
                if target.is_dir():
                    continue
                temporary = target.with_name(f"{version}{_TEMPORARY}")
                if temporary.exists():
                    shutil.rmtree(temporary)  # of a process that ended in the middle
                temporaries[temporary] = target
                shutil.copytree(sub_model / version, temporary)
            for temporary, target in temporaries.items():
                temporary.rename(target)
        except (OSError, shutil.Error) as error:
            for temporary in temporaries:
                shutil.rmtree(temporary, ignore_errors=True)
            raise OSError(f"copy of {self._model}@{version}: {error}") from error
        self._versions.append(version)
        self._copied_at_s = self._clock.now_s()
        logger.info("model copied model=%s version=%s sub_models=%d", self._model, version, len(sub_models))

    def _remove_old(self) -> None:
        while len(self._versions) > self._keeps:
            version = self._versions.pop(0)
            for sub_model in self._target.iterdir():
                shutil.rmtree(sub_model / version, ignore_errors=True)
            logger.info("model copy removed model=%s version=%s", self._model, version)

    def _remove_locks(self, own: list[Path]) -> None:
        for lock in own:
            lock.unlink(missing_ok=True)
        oldest_s = self._clock.now_s() - self._times.start_limit_s
        for lock in self._source.glob(f"{self._model}@*{_LOCK}"):
            try:
                if lock.stat().st_mtime < oldest_s:
                    lock.unlink()
                    logger.info("stale lock removed path=%s", lock)
            except OSError:
                continue  # its owner removed it


def _version_key(version: str) -> tuple[int, int, str]:
    return (1, int(version), "") if version.isascii() and version.isdigit() else (0, 0, version)
