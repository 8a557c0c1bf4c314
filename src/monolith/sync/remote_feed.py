"""Copy a published folder to a URL, and from there into the cache of a server: freshness without a common disk.

``FeedUpload`` runs beside the publisher, ``FeedDownload`` in a model server. Each has one thread.

::

    <url>/current.json              the generation to follow
    <url>/gen-<token>/cut.json      the newest cut of a generation, in the format of a published folder
    <url>/gen-<token>/...           base, segments and dense weights that the cut needs

Invariants:

- Every start of an upload is a new generation, so no file changes its content under one name.
- The files of a cut are complete before ``cut.json`` names them, and ``current.json`` is written after the first cut.
- Files that no recent cut needs are removed after a grace period. A download that misses one starts over.
- A download writes ``cut.json`` into the cache last. Followers read the cache like the original folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import threading
import time
from collections import deque
from os import PathLike
from pathlib import Path

from monolith.artifacts.delta_log import Cut, read_cut
from monolith.artifacts.delta_log.publish import CUT
from monolith.core import storage
from monolith.core.errors import ArtifactError, MonolithError, VersionConflict
from monolith.core.retry import RetryPolicy, retry
from monolith.sync.base_snapshot import BASE
from monolith.sync.dense_versions import DENSE, version_files
from monolith.sync.feed_pieces import CutPieces

__all__ = ["FeedDownload", "FeedUpload"]

logger = logging.getLogger(__name__)

_CURRENT = "current.json"
_GENERATION = re.compile(r"gen-[0-9a-f]{16}")
_NAME = re.compile(
    r"base\.json"
    r"|dense/dense-\d{20}\.(?:json|safetensors)"
    r"|log-[0-9a-f]{16}-\d{5}-of-\d{5}/seg-\d{20}\.delta"
    r"|base-[0-9a-f]{8}/[\w.-]+"
)
_GRACE_S = 60.0
"""How long files stay after the last cut that needs them."""
_RENEWED_BYTES = 64 << 20
"""Bytes of segments after which the upload starts over from a newer base, at least four times the last transfer."""
_LONGEST_PAUSE_S = 5.0
_RETRIES = RetryPolicy(attempts=3)


class FeedUpload:
    """Uploads the cuts of a published folder until ``close``.

    Args:
        root: Published folder.
        url: URL of the feed.
        every_s: Seconds between two looks for a new cut.
        grace_s: How long files stay after the last cut that needs them.
    """

    def __init__(self, root: str | PathLike[str], url: str, *, every_s: float = 1.0, grace_s: float = _GRACE_S) -> None:
        self.url = storage.normalize_url(url)
        self.failures = 0
        """Uploads that failed; each is tried again."""
        self._root = Path(root)
        self._every_s = every_s
        self._grace_s = grace_s
        self._generation = f"gen-{secrets.token_hex(8)}"
        self._pieces = CutPieces(self._root, {})
        self._cut: Cut | None = None
        self._uploaded: set[str] = set()
        self._rows: set[str] = set()
        self._needed: deque[tuple[float, frozenset[str]]] = deque()
        self._begun_bytes = self._added_bytes = 0
        self._started_s = time.monotonic()
        self._old_generations: list[str] = []
        self._part = self._root / f".uploading-{self._generation}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed-upload", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Upload the present cut, and start the thread.

        Raises:
            ConfigError: The driver of the URL is missing.
            ArtifactError: The URL cannot be written.
        """
        self.step()
        self._thread.start()

    def close(self) -> None:
        """Upload the last cut and end the thread.

        Raises:
            ArtifactError: The last cut was not uploaded.
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self.step()
        finally:
            self._part.unlink(missing_ok=True)

    def step(self) -> bool:
        """Upload the newest cut; return whether it is new.

        Raises:
            ArtifactError: The upload failed, or a file was removed meanwhile; a newer cut may work.
            VersionConflict: Another publisher has taken the URL.
        """
        cut = read_cut(self._root)
        if cut is None or cut == self._cut:
            return False
        try:
            self._check_alone()
            self._send(cut)
            if self._cut is None:
                self._old_generations = [
                    name
                    for name in storage.list_names(self.url)
                    if _GENERATION.fullmatch(name) and name != self._generation
                ]
                _write(f"{self.url}/{_CURRENT}", json.dumps({"generation": self._generation}).encode() + b"\n")
            self._cut = cut
            self._tidy_up()
        except MonolithError as error:
            self._pieces = CutPieces(self._root, {})  # its position may be past files that were not uploaded
            if not isinstance(error.__cause__, OSError) or isinstance(error, ArtifactError):
                raise
            raise self._failed(error.__cause__) from error
        except OSError as error:
            self._pieces = CutPieces(self._root, {})
            raise self._failed(error) from error
        return True

    def _failed(self, error: BaseException) -> ArtifactError:
        return ArtifactError(
            f"could not upload the cut of '{self._root}' to '{self.url}': {error}; check the URL, its credentials and "
            "the network"
        )

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._ended.wait(pause_s):
            try:
                self.step()
                pause_s = self._every_s
            except VersionConflict as error:
                logger.error("feed upload ended url=%s error=%s", self.url, error)
                return
            except Exception as error:  # an unexpected class must not stop the thread
                self.failures += 1
                logger.error("feed upload failed, retrying url=%s error=%s", self.url, error)
                pause_s = max(self._every_s, min(2 * pause_s, _LONGEST_PAUSE_S))

    def _check_alone(self) -> None:
        if self._cut is not None and (current := _read_current(self.url)) != self._generation:
            raise VersionConflict(
                f"'{self.url}' has the generation {current!r}, expected {self._generation!r}: another publisher uses "
                "the URL; stop one of them"
            )

    def _send(self, cut: Cut) -> None:
        """Upload the files that lead to a cut, then the cut."""
        rows, is_full, has_newer_base = set(self._rows), False, False
        manifests: dict[str, bytes] = {}
        for message in self._pieces.to(cut):
            if message.is_anew:
                rows, is_full = set(), True
                self._begun_bytes = self._added_bytes = 0
                continue
            if message.path in (BASE, CUT):
                manifests[message.path] = bytes(message.content)
                has_newer_base = message.has_newer_base
                continue
            with self._part.open("ab" if message.offset else "wb") as file:
                file.write(message.content)
            if message.offset + len(message.content) < message.size:
                continue
            self._put(message.path)
            if not message.path.startswith(f"{DENSE}/"):
                rows.add(message.path)
                self._begun_bytes += message.size if is_full else 0
                self._added_bytes += 0 if is_full else message.size
        weights = version_files(self._root, cut.dense) if cut.dense else []
        for name in (BASE, CUT):
            if name in manifests:
                _write(f"{self.url}/{self._generation}/{name}", manifests[name])
        self._rows = rows
        self._needed.append((time.monotonic(), frozenset({*rows, *weights})))
        if has_newer_base and self._added_bytes > max(_RENEWED_BYTES, 4 * self._begun_bytes):
            self._pieces = CutPieces(self._root, {})

    def _put(self, name: str) -> None:
        if name in self._uploaded:
            return
        url = f"{self.url}/{self._generation}/{name}"
        storage.make_folder(url.rpartition("/")[0])
        retry(_RETRIES, lambda: storage.upload_file(self._part, url), is_retryable=_is_passing)
        self._uploaded.add(name)

    def _tidy_up(self) -> None:
        """Remove files that no recent cut needs, and earlier generations."""
        past_s = time.monotonic() - self._grace_s
        while len(self._needed) > 1 and self._needed[1][0] <= past_s:
            self._needed.popleft()
        needed = frozenset[str]().union(*(names for _, names in self._needed))
        for name in sorted(self._uploaded - needed):
            with contextlib.suppress(FileNotFoundError):
                storage.remove_file(f"{self.url}/{self._generation}/{name}")
            self._uploaded.discard(name)
        if self._old_generations and self._started_s <= past_s:
            for name in self._old_generations:
                storage.remove_folder(f"{self.url}/{name}")
            self._old_generations = []


class FeedDownload:
    """Fills a folder from the feed at a URL in a background thread until ``close``.

    It has the methods of ``Subscription``. Used by one server; followers read the folder.

    Args:
        url: URL of the feed.
        folder: Folder of the cache. No other process may write to it.
        poll_s: Seconds between two looks for a new cut.
    """

    def __init__(self, url: str, folder: str | PathLike[str], *, poll_s: float = 1.0) -> None:
        self.address = storage.normalize_url(url)
        self.folder = Path(folder)
        self.error = ""
        """Error of the last look; empty after a success."""
        self.failures = 0
        """Looks that failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._poll_s = poll_s
        self._seen: tuple[str, bytes] | None = None
        self._generation = ""
        self._renews = False
        self._ended = threading.Event()
        self._is_settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed-download", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread that downloads."""
        self._thread.start()

    def renew(self) -> None:
        """Request all files again, because followers found damaged ones. Callable from any thread."""
        self._renews = True

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait for the first cut or the first failure; return False on timeout."""
        return self._is_settled.wait(timeout_s)

    def close(self) -> None:
        """End the thread. The folder keeps its content. A second call does nothing."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self) -> bool:
        """Download the newest cut; return whether it is new.

        Raises:
            ConfigError: The driver of the URL is missing.
            ArtifactError: The URL cannot be read, or a file was removed meanwhile.
        """
        try:
            generation = _read_current(self.address)
            if not generation:
                return False
            url = f"{self.address}/{generation}"
            content = storage.read_file(f"{url}/{CUT}")
            if self._renews:
                self._seen, self._generation, self._renews = None, "", False
            if content is None or (generation, content) == self._seen:
                return False
            names = [name for name in storage.walk_files(url) if _NAME.fullmatch(name)]
            for name in sorted(names, key=lambda each: each == BASE):
                self._get(url, name, is_kept=generation == self._generation and name != BASE)
            self._place_cut(content)
        except OSError as error:
            raise ArtifactError(f"could not read the feed '{self.address}': {error}") from error
        self._seen, self._generation = (generation, content), generation
        self._tidy_up(set(names))
        return True

    def _run(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            try:
                if self.step():
                    self._is_settled.set()
                self.error, pause_s = "", self._poll_s
            except Exception as error:  # an unexpected class must not stop the thread
                if str(error) != self.error:
                    logger.warning("feed download failed, retrying url=%s error=%s", self.address, error)
                self.error = str(error)
                self.failures += 1
                self._is_settled.set()
                pause_s = max(self._poll_s, min(2 * pause_s, _LONGEST_PAUSE_S))

    def _get(self, url: str, name: str, *, is_kept: bool) -> None:
        target = self.folder / name
        if is_kept and target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = self.folder / "receiving.part"
        try:
            retry(_RETRIES, lambda: storage.download_file(f"{url}/{name}", part), is_retryable=_is_passing)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)  # a part of a file must not keep a disk full

    def _place_cut(self, content: bytes) -> None:
        """Make a cut the current one, once it is readable and its files are here.

        Raises:
            ArtifactError: The cut is corrupt, or a newer cut replaced its files.
        """
        staged = self.folder / "staged"
        staged.mkdir(exist_ok=True)
        (staged / CUT).write_bytes(content)
        cut = read_cut(staged)
        assert cut is not None  # written above
        newest = [(cut.folders[shard], sequence) for shard, sequence in cut.sequences.items() if sequence]
        names = [f"{folder}/seg-{sequence:020d}.delta" for folder, sequence in newest]
        names += version_files(self.folder, cut.dense) if cut.dense else []
        for name in names:
            if not (self.folder / name).exists():
                raise ArtifactError(f"'{self.address}' has a newer cut, which replaced {name!r}; reading again")
        (staged / CUT).replace(self.folder / CUT)

    def _tidy_up(self, names: set[str]) -> None:
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if _NAME.fullmatch(name) and name not in names:
                path.unlink(missing_ok=True)
        for folder in self.folder.iterdir():
            if folder.is_dir() and not any(folder.iterdir()):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _read_current(url: str) -> str:
    """Return the generation of a feed; empty before the first upload.

    Raises:
        ArtifactError: The file is corrupt.
    """
    content = storage.read_file(f"{url}/{_CURRENT}")
    if content is None:
        return ""
    try:
        generation = json.loads(content)["generation"]
        if _GENERATION.fullmatch(generation):
            return str(generation)
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"'{url}/{_CURRENT}' is corrupt ({error}), expected the file of a feed") from error
    raise ArtifactError(f"'{url}/{_CURRENT}' names {generation!r}, expected a generation of a feed")


def _write(url: str, content: bytes) -> None:
    def write_once() -> None:
        storage.make_folder(url.rpartition("/")[0])
        new = storage.NewFile(url)
        try:
            new.write(content)
            new.publish()
        except BaseException:
            new.discard()
            raise

    retry(_RETRIES, write_once, is_retryable=_is_passing)


def _is_passing(error: Exception) -> bool:
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)
