"""Folders on remote file systems: staged locally, uploaded when complete, downloaded before they are read.

A URL (``s3://bucket/run``) has one local staging folder per machine; all code reads and writes the staging folder.
``RemoteFolder`` keeps both equal. ``stage_folder`` maps a URL to its staging folder, ``remote_of`` finds the
``RemoteFolder`` of a local path.

A *bundle* is a folder that is complete once its ``manifest.json`` exists: a checkpoint or a version of an export.

Invariants:

- An upload writes the files of a bundle, then its manifest. A removal deletes the manifest first. A bundle without a
  manifest is never read.
- A download appears locally by one rename, after the size and checksum of every file are verified.
- A local bundle that was never uploaded is uploaded by the next ``push``. If another machine wrote bundles to the same
  place meanwhile, those win, and the local one is renamed to ``.superseded-...``.
- ``push`` refuses to write beside bundles that this machine has not seen: another run writes there.

Threads and processes of one machine take turns through a lock on the staging folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from monolith.artifacts.checkpoint_manifest import MANIFEST, FileRecord, measure_file
from monolith.artifacts.file_copy import copy_file
from monolith.core import storage
from monolith.core.clock import Clock
from monolith.core.durable_files import make_folder, replace_file, sync_folder, unseal, write_synced
from monolith.core.errors import ArtifactError, ManifestInvalid, MonolithError, VersionConflict
from monolith.core.retry import RetryPolicy, retry

__all__ = [
    "STAGING_VARIABLE",
    "RemoteFolder",
    "artifact_url",
    "check_writable",
    "fetch_bundle",
    "is_staged",
    "local_path",
    "open_folder",
    "push_folder",
    "refresh_folder",
    "stage_folder",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

STAGING_VARIABLE = "MONOLITH_STAGING_DIR"
"""Environment variable with the folder of all staging folders; the default is ``~/.cache/monolith/staging``."""

_STATE, _LOCK, _CHECK = ".remote.json", ".remote.lock", ".remote-check"
_MANIFEST_COPY = ".remote-manifest"
"""Copy of the manifest in upload, because the bundle may be replaced meanwhile."""
_PLACEHOLDER = ".not-fetched"
"""File of a local bundle that has only its manifest so far."""
_FETCHING, _REMOVED, _SUPERSEDED = ".fetching-", ".removed-", ".superseded-"
_INSIDE_RUN = re.compile(r"(.+)/((?:checkpoints|dense_only)(?:/step-\d{9,})?)")
"""A URL inside of a model folder; the model folder is staged, so that a checkpoint has one local copy."""
_BUNDLE = re.compile(r"step-\d{9,}|\d+")
_MOST_VERSION = (1 << 63) - 1
_TOP_BUNDLES = frozenset({"best"})
_LOCAL_ONLY = frozenset(
    {"cluster", "controller_server_addr.txt", "delta_log", "files", "published", "running.json", "workers"}
)
"""Names in a model folder that have a meaning only while the processes of a job run."""
_NOT_DOWNLOADED = re.compile(r"(?:.*/)?events\.out\.tfevents.*|(?:profile|features)/.*")
_PARTIAL = ""
"""Digest in the state of a bundle whose first upload is not complete."""
_LOOSE_BYTES = 4 << 20
"""Largest loose file that ``pull`` downloads: job files, markers and state files are small."""
_WORKERS = 8
_RETRIES = RetryPolicy()


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path for a path or URL, without network access: the staging folder for a URL."""
    text = os.fspath(path)
    return stage_folder(text).path if storage.is_url(text) else Path(text)


def stage_folder(url: str) -> RemoteFolder:
    """Return the remote folder of a URL with its staging folder, which may not exist yet."""
    normal = storage.normalize_url(url)
    digest = hashlib.sha256(normal.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]", "_", normal.rpartition("/")[2]) or "root"
    # The digest is a folder by itself: an access rule on the parent of a staging folder allows this URL alone.
    return RemoteFolder(normal, _staging_root() / digest / name)


def open_folder(path: str | os.PathLike[str]) -> Path:
    """Return a local path for reading: of a URL, the staging folder with the present content.

    The URL may be a model folder, its checkpoints, one checkpoint, the base of an export, or a snapshot.

    Raises:
        ConfigError: The driver of the URL is missing.
        ArtifactError: The URL cannot be read.
    """
    text = os.fspath(path)
    if not storage.is_url(text):
        return Path(text)
    url = storage.normalize_url(text)
    match = _INSIDE_RUN.fullmatch(url)
    folder = stage_folder(match[1] if match else url)
    if match is None and folder.is_bundle():
        folder.pull_whole()
    else:
        folder.pull()
    return folder.path / match[2] if match else folder.path


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that the URL of a staging folder can be written; do nothing for other paths.

    Raises:
        ArtifactError: The URL cannot be written.
    """
    staged = _remote_of(path)
    if staged is not None:
        staged[0].check_writable()


def push_folder(path: str | os.PathLike[str]) -> None:
    """Upload the staging folder that contains ``path``; do nothing for other paths.

    Raises:
        ArtifactError: The upload failed. The local content stays, and the next call continues.
        VersionConflict: Another run writes to the URL.
    """
    staged = _remote_of(path)
    if staged is not None:
        staged[0].push()


def refresh_folder(path: str | os.PathLike[str]) -> None:
    """Pull the staging folder that contains ``path``; do nothing for other paths."""
    staged = _remote_of(path)
    if staged is not None:
        staged[0].pull()


def fetch_bundle(path: str | os.PathLike[str]) -> None:
    """Download the files of a bundle that has only its manifest so far; do nothing for every other folder.

    Raises:
        ArtifactError: The download failed, or the bundle is corrupt at its URL.
    """
    if (Path(path) / _PLACEHOLDER).exists() and (staged := _remote_of(path)) is not None:
        folder, name = staged
        folder.fetch(name)


def is_staged(path: str | os.PathLike[str]) -> bool:
    """Return whether a local path lies in a staging folder."""
    return _remote_of(path) is not None


def artifact_url(path: str | os.PathLike[str]) -> str:
    """Return the URL of a path in a staging folder; of other paths, the absolute path."""
    staged = _remote_of(path)
    if staged is None:
        return str(Path(path).resolve())
    folder, name = staged
    return f"{folder.url}/{name}" if name else folder.url


def _remote_of(path: str | os.PathLike[str]) -> tuple[RemoteFolder, str] | None:
    """Return the remote folder that stages a local path, and the path relative to it; None for other paths."""
    root = _staging_root()
    absolute = Path(os.path.abspath(path))
    if not absolute.is_relative_to(root) or len(parts := absolute.relative_to(root).parts) < 2:
        return None
    folder = root / parts[0] / parts[1]
    try:
        url = json.loads((folder / _STATE).read_bytes())["url"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return RemoteFolder(str(url), folder), "/".join(parts[2:])


@dataclass(slots=True)
class _State:
    """The common state of both sides after the last transfer; stored in the staging folder."""

    bundles: dict[str, str] = field(default_factory=dict)
    """Bundle to the digest of its manifest."""
    loose: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Other file to the size and modification time of its local copy."""


class RemoteFolder:
    """A folder at a URL, and its local staging folder.

    Args:
        url: The URL.
        path: The staging folder.
        policy: Retries of each file; the default is 5 attempts.
        clock: Clock of the pauses between attempts.
    """

    def __init__(self, url: str, path: Path, *, policy: RetryPolicy = _RETRIES, clock: Clock | None = None) -> None:
        self.url = url
        self.path = path
        self._policy = policy
        self._clock = clock

    # --- download ---

    def pull(self) -> None:
        """Make the local list of bundles equal to the remote one, and download small files.

        A new bundle gets only its manifest; ``fetch`` downloads the rest. Bundles that wait for their upload stay,
        unless the URL has changed meanwhile.

        Raises:
            ArtifactError: The URL cannot be read.
        """
        with self._locked() as state:
            names = self._list()
            manifests = self._read_manifests(names)
            local = self._local_bundles()
            changed_places: set[str] = set()
            for name, content in manifests.items():
                digest, known = _digest(content), state.bundles.get(name)
                if digest not in (known, local.get(name)):
                    changed_places.add(name.rpartition("/")[0])
                if local.get(name) in (None, known) and local.get(name) != digest:
                    self._place(name, content)
                    local[name] = digest
                state.bundles[name] = digest
            for name, digest in local.items():
                is_pending = digest != state.bundles.get(name)
                if name in manifests and not is_pending:
                    continue
                if is_pending and name.rpartition("/")[0] in changed_places:
                    self._set_aside(name, manifests.get(name))
                elif not is_pending:
                    self._remove_local(name)
            state.bundles = {
                name: digest for name, digest in state.bundles.items() if name in manifests or digest == _PARTIAL
            }
            self._pull_loose(state, names)

    def fetch(self, name: str) -> None:
        """Download a bundle; do nothing if it is complete here.

        Raises:
            ArtifactError: The download failed, or a file differs from its manifest.
        """
        with self._locked():
            folder = self.path / name
            if not (folder / _PLACEHOLDER).exists():
                return
            self._download(name, (folder / MANIFEST).read_bytes())

    def is_bundle(self) -> bool:
        """Return whether the URL itself is a checkpoint or a snapshot."""
        with self._errors("read"):
            return storage.read_file(f"{self.url}/{MANIFEST}") is not None

    def pull_whole(self) -> None:
        """Download the files of the URL; those of the same manifest that are here with their size stay.

        Raises:
            ArtifactError: The download failed.
        """
        with self._locked(), self._errors("download from"):
            names = storage.walk_files(self.url)
            manifest = self._retry(lambda: storage.read_file(f"{self.url}/{MANIFEST}"))
            if manifest is None:
                raise FileNotFoundError(f"{self.url}/{MANIFEST} was removed meanwhile")
            fetching = self.path / f"{_FETCHING}{MANIFEST}"
            is_known = any(path.exists() and path.read_bytes() == manifest for path in (self.path / MANIFEST, fetching))
            if not is_known:  # files of an earlier content may have the same sizes
                (self.path / MANIFEST).unlink(missing_ok=True)
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                replace_file(fetching, manifest)

            def get(name: str) -> None:
                target, url = self.path / name, f"{self.url}/{name}"
                if target.exists() and target.stat().st_size == storage.file_bytes(url):
                    return
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f"{_FETCHING}{target.name}")
                self._retry(lambda: storage.download_file(url, part))
                part.replace(target)

            with ThreadPoolExecutor(_WORKERS, thread_name_prefix="remote") as pool:
                list(pool.map(get, (name for name in names if name != MANIFEST)))
            replace_file(self.path / MANIFEST, manifest)
            fetching.unlink(missing_ok=True)

    def pull_versions(self, choose: Callable[[Collection[int]], Collection[int]]) -> None:
        """Download the chosen versions of an export, and remove the versions that the URL does not have.

        A version that cannot be downloaded keeps no other version from its download.

        Args:
            choose: Returns the wanted versions of those at the URL.

        Raises:
            ArtifactError: The URL cannot be read, or a file differs from its manifest.
        """
        failures: list[ArtifactError] = []
        with self._locked() as state:
            with self._errors("read"):
                numbers = [name for name in storage.list_names(self.url) if _is_version(name)]
            manifests = self._read_manifests([f"{name}/{MANIFEST}" for name in numbers])
            names = {int(name): name for name in sorted(manifests)}  # a name may have leading zeros
            for name in [names[version] for version in sorted(set(choose(names)))]:
                content = manifests[name]
                if state.bundles.get(name) != _digest(content) or not (self.path / name).is_dir():
                    try:
                        self._download(name, content)
                    except ArtifactError as error:
                        failures.append(error)
                        continue
                    state.bundles[name] = _digest(content)
            for name in [each for each, known in state.bundles.items() if each not in manifests and known != _PARTIAL]:
                self._remove_local(name)
                del state.bundles[name]
        if failures:
            raise failures[0]

    # --- upload ---

    def check_writable(self) -> None:
        """Write and remove a small file, so that a run fails before its first step and not at its first checkpoint.

        Raises:
            ArtifactError: The URL cannot be written.
        """
        url = f"{self.url}/.check-{secrets.token_hex(8)}"
        make_folder(self.path)
        source = self.path / _CHECK
        source.write_bytes(b"\n")
        with self._errors("write to"):
            storage.make_folder(self.url)
            self._retry(lambda: storage.upload_file(source, url))
            storage.remove_file(url)

    def push(self) -> None:
        """Upload complete bundles and changed files, and remove remote bundles that were removed here.

        Raises:
            ArtifactError: The upload failed. The local files stay, and the next call continues.
            VersionConflict: Another run writes to the URL.
        """
        with self._locked() as state:
            local = self._local_bundles()
            pending = {name: digest for name, digest in local.items() if state.bundles.get(name) != digest}
            if pending:
                self._check_alone(state, local)
            for name in sorted(pending, key=_is_entry):
                content = self._local_manifest(name)
                if content is None:
                    continue  # retention removed it meanwhile
                if name not in state.bundles:
                    state.bundles[name] = _PARTIAL
                    self._write_state(state)  # if it is removed before its upload is complete, its files leave the URL
                try:
                    self._upload(name, content)
                except ArtifactError:
                    if self._local_manifest(name) == content:
                        raise
                    continue  # removed or replaced meanwhile
                state.bundles[name] = _digest(content)
                self._write_state(state)
            gone = [name for name in state.bundles if name not in local]
            for name in sorted(gone, key=_is_entry, reverse=True):
                self._remove_remote(name, is_partial=state.bundles[name] == _PARTIAL)
                del state.bundles[name]
            self._push_loose(state)

    # --- inside ---

    def _list(self) -> list[str]:
        with self._errors("read"):
            names = storage.walk_files(self.url) if storage.is_folder(self.url) else []
        return [name for name in names if name.partition("/")[0] not in _LOCAL_ONLY]

    def _read_manifests(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the manifest of every complete bundle among the files of the URL."""
        found = [name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")]
        bundles = [name for name in found if _bundle_of(f"{name}/{MANIFEST}") == name]

        def read(name: str) -> bytes | None:
            return self._retry(lambda: storage.read_file(f"{self.url}/{name}/{MANIFEST}"))

        with self._errors("read"), ThreadPoolExecutor(_WORKERS, thread_name_prefix="remote") as pool:
            contents = dict(zip(bundles, pool.map(read, bundles), strict=True))
        return {name: content for name, content in contents.items() if content is not None}

    def _place(self, name: str, manifest: bytes) -> None:
        """Make a local bundle of a manifest alone."""
        staging = self._new_folder(name)
        (staging / _PLACEHOLDER).touch()
        write_synced(staging / MANIFEST, manifest)
        self._publish(staging, name)

    def _download(self, name: str, manifest: bytes) -> None:
        records = _records(manifest, f"{self.url}/{name}/{MANIFEST}")
        staging = self._new_folder(name)

        def get(record: FileRecord) -> None:
            target = staging / record.name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._retry(lambda: storage.download_file(f"{self.url}/{name}/{record.name}", target))
            if measure_file(target) != (record.bytes, record.crc32c):
                raise ManifestInvalid(
                    f"'{self.url}/{name}/{record.name}' is corrupt: size or checksum differs from the manifest; "
                    "upload it again, or choose another version"
                )
            with target.open("rb") as file:
                os.fsync(file.fileno())

        try:
            with self._errors("download from"), ThreadPoolExecutor(_WORKERS, thread_name_prefix="remote") as pool:
                list(pool.map(get, records))
            write_synced(staging / MANIFEST, manifest)
            self._publish(staging, name)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        logger.info("bundle downloaded url=%s/%s files=%d", self.url, name, len(records))

    def _new_folder(self, name: str) -> Path:
        parent = (self.path / name).parent
        make_folder(parent)
        for leftover in parent.glob(f"{_FETCHING}*"):  # of a killed process; the caller has the lock
            shutil.rmtree(leftover, ignore_errors=True)
        staging = parent / f"{_FETCHING}{secrets.token_hex(8)}"
        staging.mkdir()
        return staging

    def _publish(self, staging: Path, name: str) -> None:
        self._remove_local(name)
        staging.rename(self.path / name)
        sync_folder((self.path / name).parent)

    def _remove_local(self, name: str) -> None:
        path = self.path / name
        if path.is_dir():
            aside = path.with_name(f"{_REMOVED}{path.name}-{secrets.token_hex(8)}")
            path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _set_aside(self, name: str, manifest: bytes | None) -> None:
        """Keep a local bundle that was never uploaded under another name, because another machine wrote since."""
        path = self.path / name
        aside = path.with_name(f"{_SUPERSEDED}{path.name}-{secrets.token_hex(4)}")
        path.rename(aside)
        logger.warning("local bundle superseded by another machine url=%s/%s kept=%s", self.url, name, aside)
        if manifest is not None:
            self._place(name, manifest)

    def _local_bundles(self) -> dict[str, str]:
        """Return the digest of the manifest of every local bundle, in the order of its modification."""
        found: list[tuple[float, str, str]] = []
        for manifest in _walk(self.path):
            if manifest.name == MANIFEST:
                name = manifest.relative_to(self.path).as_posix()
                if _bundle_of(name) == name.removesuffix(f"/{MANIFEST}"):
                    with contextlib.suppress(FileNotFoundError):  # retention removed it meanwhile
                        bundle = name.removesuffix(f"/{MANIFEST}")
                        found.append((manifest.stat().st_mtime, bundle, _digest(manifest.read_bytes())))
        return {name: digest for _, name, digest in sorted(found)}

    def _check_alone(self, state: _State, local: Mapping[str, str]) -> None:
        """Refuse to write beside another run.

        Raises:
            VersionConflict: The URL has a bundle that this machine has neither written nor read.
        """
        places = sorted({name.rpartition("/")[0] for name in local})
        with self._errors("read"):
            for place in places:
                base = f"{self.url}/{place}" if place else self.url
                for child in storage.list_names(base):
                    name = f"{place}/{child}" if place else child
                    if state.bundles.get(name, _PARTIAL) != _PARTIAL or _bundle_of(f"{name}/x") != name:
                        continue
                    content = storage.read_file(f"{self.url}/{name}/{MANIFEST}")
                    if content is not None and local.get(name) != _digest(content):
                        raise VersionConflict(
                            f"'{self.url}' has {name!r}, which this run has not written, expected one run per URL; "
                            "stop the other run, or give another URL"
                        )

    def _local_manifest(self, name: str) -> bytes | None:
        try:
            return (self.path / name / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _upload(self, name: str, content: bytes) -> None:
        """Upload the files that a manifest names, then the manifest.

        Raises:
            ArtifactError: The upload failed, or the bundle is now another one.
        """
        target = f"{self.url}/{name}"
        records = _records(content, f"{self.path / name / MANIFEST}")
        with self._errors("upload to"):
            if storage.read_file(f"{target}/{MANIFEST}") is not None:
                storage.remove_file(f"{target}/{MANIFEST}")  # the version before is incomplete from here on
            for folder in sorted({record.name.rpartition("/")[0] for record in records} | {""}):
                storage.make_folder(f"{target}/{folder}" if folder else target)

            def put(record: FileRecord) -> None:
                source = self.path / name / record.name
                self._retry(lambda: storage.upload_file(source, f"{target}/{record.name}"))

            with ThreadPoolExecutor(_WORKERS, thread_name_prefix="remote") as pool:
                list(pool.map(put, records))
            if self._local_manifest(name) != content:
                raise ArtifactError(f"'{self.path / name}' was replaced during its upload; upload it again")
            replace_file(self.path / _MANIFEST_COPY, content)
            copy_file(str(self.path / _MANIFEST_COPY), f"{target}/{MANIFEST}", policy=self._policy, clock=self._clock)
        logger.info("bundle uploaded url=%s bytes=%d", target, sum(record.bytes for record in records))

    def _remove_remote(self, name: str, *, is_partial: bool) -> None:
        with self._errors("remove from"):
            if storage.read_file(f"{self.url}/{name}/{MANIFEST}") is not None:
                if is_partial:
                    return  # another run completed it
                storage.remove_file(f"{self.url}/{name}/{MANIFEST}")
            storage.remove_folder(f"{self.url}/{name}")
        logger.info("bundle removed url=%s/%s", self.url, name)

    def _pull_loose(self, state: _State, names: Collection[str]) -> None:
        remote = [name for name in names if _bundle_of(name) is None and not _is_internal(name)]
        with self._errors("read"):
            for name in remote:
                path = self.path / name
                is_pending = path.exists() and state.loose.get(name) != _stamp(path)
                if (
                    is_pending
                    or _NOT_DOWNLOADED.fullmatch(name)
                    or storage.file_bytes(f"{self.url}/{name}") > _LOOSE_BYTES
                ):
                    continue
                content = storage.read_file(f"{self.url}/{name}")
                if content is not None:
                    if not path.exists() or path.read_bytes() != content:
                        make_folder(path.parent)
                        replace_file(path, content)
                    state.loose[name] = _stamp(path)
        for name in set(state.loose) - set(remote):
            (self.path / name).unlink(missing_ok=True)
            del state.loose[name]

    def _push_loose(self, state: _State) -> None:
        local: set[str] = set()
        for path in _walk(self.path):
            name = path.relative_to(self.path).as_posix()
            if _bundle_of(name) is not None:
                continue
            local.add(name)
            try:
                stamp = _stamp(path)
                if state.loose.get(name) == stamp:
                    continue
                with self._errors("upload to"):
                    storage.make_folder(f"{self.url}/{name}".rpartition("/")[0])
                    copy_file(str(path), f"{self.url}/{name}", policy=self._policy, clock=self._clock)
                state.loose[name] = stamp
            except (FileNotFoundError, ArtifactError):
                if path.exists():
                    raise
                local.discard(name)  # removed meanwhile
        for name in set(state.loose) - local:
            if storage.read_file(f"{self.url}/{name}") is not None:
                storage.remove_file(f"{self.url}/{name}")
            del state.loose[name]

    def _retry(self, action: Callable[[], T]) -> T:
        def is_passing(error: Exception) -> bool:
            return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)

        return retry(self._policy, action, clock=self._clock, is_retryable=is_passing)

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Translate errors of the file system into one that names the URL."""
        try:
            yield
        except MonolithError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, OSError):
                raise
            raise ArtifactError(self._describe(verb, error.__cause__)) from error
        except Exception as error:  # drivers raise the classes of their clients
            raise ArtifactError(self._describe(verb, error)) from error

    def _describe(self, verb: str, error: BaseException) -> str:
        reason = str(error) or type(error).__name__
        return (
            f"could not {verb} '{self.url}': {reason}; check the URL, its credentials and the network. The local copy "
            f"is '{self.path}'"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_State]:
        """Hold the lock of the staging folder; errors of local files become ``ArtifactError``."""
        try:
            with self._locked_state() as state:
                yield state
        except OSError as error:
            text = f"could not synchronize '{self.path}' with '{self.url}': {error}; check the disk"
            raise ArtifactError(text) from error

    @contextlib.contextmanager
    def _locked_state(self) -> Iterator[_State]:
        make_folder(self.path)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            state = self._read_state()
            try:
                yield state
            finally:
                self._write_state(state)
        finally:
            os.close(handle)

    def _read_state(self) -> _State:
        try:
            body = json.loads((self.path / _STATE).read_bytes())
        except FileNotFoundError:
            return _State()
        return _State(body["bundles"], {name: (size, time) for name, (size, time) in body["loose"].items()})

    def _write_state(self, state: _State) -> None:
        body: Mapping[str, Any] = {"url": self.url, "bundles": state.bundles, "loose": state.loose}
        replace_file(self.path / _STATE, json.dumps(body, indent=1).encode() + b"\n")


def _staging_root() -> Path:
    chosen = os.environ.get(STAGING_VARIABLE)
    if chosen:
        return Path(os.path.abspath(chosen))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.path.abspath(cache)) / "monolith" / "staging"


def _walk(root: Path) -> Iterator[Path]:
    """Iterate over the files of a staging folder that belong at the URL."""
    for place, folders, names in os.walk(root):
        is_top = Path(place) == root
        folders[:] = [name for name in folders if not _is_internal(name) and not (is_top and name in _LOCAL_ONLY)]
        if _PLACEHOLDER in names:
            names = [MANIFEST]
        for name in names:
            if not _is_internal(name) and not (is_top and name in _LOCAL_ONLY):
                yield Path(place) / name


def _is_internal(name: str) -> bool:
    """Return whether a name is of a write in progress."""
    last = name.rpartition("/")[2]
    return last.startswith((".", "temp-")) or ".tmp-" in last or "-tmp-" in last


def _bundle_of(name: str) -> str | None:
    """Return the bundle that a file belongs to, by its path; None for a loose file."""
    parts = name.split("/")[:-1]
    for index, part in enumerate(parts):
        if _BUNDLE.fullmatch(part) or (index == 0 and part in _TOP_BUNDLES):
            return "/".join(parts[: index + 1])
    return None


def _is_version(name: str) -> bool:
    """Return whether a folder name is a version that a server can load."""
    return name.isascii() and name.isdigit() and int(name) <= _MOST_VERSION


def _is_entry(name: str) -> bool:
    """Return whether a bundle is the entry of a distributed export, which needs the other parts of its version."""
    return name.split("/")[-2:-1] == ["entry"]


def _records(manifest: bytes, place: str) -> list[FileRecord]:
    try:
        body = unseal(manifest)
        records = [FileRecord(**each) for each in body["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestInvalid(f"'{place}' is corrupt: {error}") from error
    if body.get("shared_tables") is not None:
        raise ManifestInvalid(
            f"'{place}' shares the tables of a checkpoint by a local path, expected its tables in the same folder; "
            "export without --share-tables"
        )
    for record in records:
        if record.name.startswith("/") or ".." in record.name.split("/"):
            raise ManifestInvalid(f"'{place}' names the file {record.name!r}, expected a path inside its folder")
    return records


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
