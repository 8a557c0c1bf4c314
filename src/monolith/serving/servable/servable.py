"""``Servable``: a loaded export that answers predictions.

Records pass the parser, the declaration and the layout kernel of training, then the dense program. Only ``apply`` and
``assign`` change a servable, under a read-write lock: predictions see the state before or after a change. Thread safe.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith import _native
from monolith.artifacts.checkpoint_manifest import verify_files
from monolith.artifacts.delta_log import Cut
from monolith.artifacts.export_manifest import (
    ASSIGNMENTS,
    PROGRAM,
    RECORD_INPUTS,
    SERVING_DEFAULT,
    TABLES,
    TORCH_PROGRAM,
    WARMUP,
    DenseProgram,
    ExportManifest,
    Signature,
    read_export_manifest,
)
from monolith.artifacts.export_warmup import decode_warmup
from monolith.artifacts.program_session import ProgramSession
from monolith.artifacts.torch_session import TorchSession
from monolith.core.errors import (
    ConfigError,
    DataError,
    InvalidRequest,
    ManifestInvalid,
    ModelNotReady,
    SchemaMismatch,
    SnapshotCorrupt,
)
from monolith.core.rwlock import ReadWriteLock
from monolith.core.throttle import yield_gil
from monolith.data import Batch
from monolith.data.records.tfrecord import read_tfrecords
from monolith.data.sources.base import RecordKind
from monolith.embedding import MultiTable
from monolith.embedding.store import Rows
from monolith.features import Declaration, Embedder, HostEmbedder
from monolith.serving.servable.cut_history import EXPORTED, CutKey, RowHistory, Undo, key_of, keys_array, read_key
from monolith.serving.servable.dense_states import DenseState, DenseStates
from monolith.serving.servable.features import describe_features, records_of_features
from monolith.serving.servable.native_model import NativeModel, NotNative, make_native_model
from monolith.serving.servable.parsers import Parsers
from monolith.serving.servable.parts import Arrays, DenseRunner, EntryRows, OwnProgram, PartialRows
from monolith.serving.servable.tables import TableCalls
from monolith.serving.versions.loaded_model import DegradedOutputs, FeatureInfo
from monolith.sync.row_updates import Move, Touched

__all__ = ["Servable"]

_CUT, _CUTS = "cut", "cuts"
_TRIES = 5
_PARTS = ("entry", "dense")
"""Sub-models that compute a dense part from rows of other servers."""

# Successive versions of a model have equal declarations.
_declaration = functools.lru_cache(maxsize=64)(Declaration.from_json)


class Servable:
    """One version of a model or sub-model. Create it with ``load``.

    Attributes:
        folder: Folder of the export.
        manifest: Manifest of the export.
        tables: Rows; None if other servers hold them. Change them through ``apply`` only.
    """

    def __init__(
        self,
        folder: Path,
        manifest: ExportManifest,
        tables: MultiTable | None,
        rows: EntryRows | None,
        dense: DenseRunner | OwnProgram | None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tables = tables
        self._lock = ReadWriteLock()
        self._dense = dense
        self._is_closed = self._is_torn = self._is_verified = self._is_following = False
        self._shown_cut = 0
        self._file_stamps: dict[str, tuple[int, int, int] | None] = {}
        self._before_close: list[Callable[[], None]] = []
        self._native: NativeModel | None = None
        self._native_dense: _native.OnnxSession | None = None
        self.on_scored: Callable[[Sequence[bytes | bytearray | memoryview], RecordKind], None] | None = None
        """Called with the records of every successful prediction."""
        self._embedder: Embedder | None = None
        self._calls = None if tables is None else TableCalls(tables)
        self._rows = rows
        self._history = RowHistory()
        self._states = DenseStates(dense, keeps_earlier=manifest.sub_model in _PARTS)
        source = tables if rows is None else rows
        if manifest.declaration is not None and source is not None:
            declaration = _declaration(json.dumps(manifest.declaration))
            yield_gil()
            self._embedder = HostEmbedder(declaration, source)  # type: ignore[arg-type]  # pulls only
            self._parsers = Parsers(declaration.schema())
            self._tensors = declaration.tensors()
            self._table_names = declaration.tables

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        threads: int = 1,
        verify: Literal["sizes", "checksums"] = "sizes",
        in_memory: bool = False,
        rows: EntryRows | None = None,
        dense: DenseRunner | OwnProgram | None = None,
        manifest: ExportManifest | None = None,
    ) -> Servable:
        """Load an export.

        Args:
            folder: Folder of one version.
            threads: Threads of the dense part, per call.
            verify: ``checksums`` checks every byte before loading. ``sizes`` leaves out the rows of mapped tables;
                ``verify_tables`` can check them later.
            in_memory: Read the tables into memory instead of mapping their files.
            rows: Row source of an ``entry``.
            dense: Runner of the dense part, for an ``entry`` without one.
            manifest: Manifest of the folder, if the caller has read it.

        Raises:
            ArtifactError: The folder has no export, or a file is damaged.
            ConfigError: The export is an ``entry``, and ``rows`` or ``dense`` is missing.
        """
        path = Path(folder)
        manifest = manifest or read_export_manifest(path)
        is_complete = verify == "checksums" or in_memory
        verify_files(path, manifest, size_only=() if is_complete else _table_files(manifest), progress=_pause)
        yield_gil()
        tables = _load_tables(path, manifest, in_memory) if manifest.has_tables else None
        if manifest.dense is not None and dense is None:
            dense = _open_program(path, manifest.dense, threads)
            yield_gil()
        if manifest.declaration is not None:
            _check_parts(path, tables, rows, dense)
        servable = cls(path, manifest, tables, rows, dense)
        servable._is_verified = is_complete
        servable._file_stamps = {} if in_memory else servable._read_stamps()
        return servable

    def verify_tables(self, is_wanted: Callable[[], bool]) -> None:
        """Check every byte of mapped tables; the load has checked all other files.

        Args:
            is_wanted: Called between files; False ends the check.

        Raises:
            ManifestInvalid: A file differs from the export.
        """
        if self._is_verified:
            return
        names = _table_files(self.manifest)
        for file in self.manifest.files:
            if file.name in names:
                if not is_wanted():
                    return
                others = {each.name for each in self.manifest.files if each.name != file.name}
                verify_files(self.folder, self.manifest, size_only=others, progress=_pause)
        self._is_verified = True

    def notice_file_changes(self) -> bool:
        """Return whether mapped files changed since the last call; ``verify_tables`` then checks them again.

        Writing to a mapped file changes the rows in service, and truncating it ends the process at the next read. This
        notices a write that left the size, so that a damaged version does not stay in service.
        """
        stamps = self._read_stamps() if self._file_stamps else {}
        if stamps == self._file_stamps:
            return False
        self._file_stamps, self._is_verified = stamps, False
        return True

    def _read_stamps(self) -> dict[str, tuple[int, int, int] | None]:
        stamps: dict[str, tuple[int, int, int] | None] = {}
        for name in _table_files(self.manifest):
            try:
                found = os.stat(self.folder / name)
                stamps[name] = (found.st_ino, found.st_size, found.st_mtime_ns)
            except OSError:
                stamps[name] = None
        return stamps

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """Number of the version."""
        return self.manifest.version

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count) of the ids in the tables: ``uint64(id) % count == index``."""
        return self.manifest.shard if self.manifest.sub_model == "ps" and self.manifest.shard else (0, 1)

    @property
    def is_following(self) -> bool:
        """Whether a follower moves this servable."""
        return self._is_following

    @property
    def shown_cut(self) -> int:
        """The number of the cut that this servable shows; 0 for its export."""
        return self._shown_cut

    @property
    def has_weights(self) -> bool:
        """Whether this servable holds the dense part, so that ``apply`` can change its weights."""
        return isinstance(self._dense, OwnProgram)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""
        return self.manifest.signatures

    @property
    def features(self) -> tuple[FeatureInfo, ...]:
        """Features of the model with the types that it was trained on; empty if it scores no records."""
        return () if self._embedder is None else describe_features(self._embedder.declaration)

    # --- scoring ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        records: Sequence[bytes | bytearray | memoryview],
        kind: RecordKind,
        signature: str = SERVING_DEFAULT,
        outputs: Sequence[str] | None = None,
    ) -> Arrays:
        """Score serialized records.

        Args:
            records: Serialized messages; the result has the rows of all records, in order.
            kind: Type of the messages.
            signature: Name of the signature.
            outputs: Outputs to compute; None means all outputs of the signature.

        Returns:
            Output name to array with one row per example.

        Raises:
            InvalidRequest: A record is invalid or does not fit the model, or the signature does not exist.
        """
        wanted = self._wanted(signature, outputs)
        try:
            batch = self._parsers.parse(records, kind)
            scores = self._score(batch, wanted)
        except (DataError, ConfigError) as error:
            raise InvalidRequest(str(error)) from error
        if self.on_scored is not None:
            self.on_scored(records, kind)
        return scores

    def predict_features(
        self,
        features: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        signature: str = SERVING_DEFAULT,
        outputs: Sequence[str] | None = None,
    ) -> Arrays:
        """Score examples whose features are given by name, as in JSON.

        Args:
            features: A mapping of feature name to a list with one value per example, or a list of mappings, one per
                example. A sparse feature takes a value or a list of values, hashed to ids like those of records, or
                ``{"fids": [...]}``. A dense feature takes a number or a list of numbers.
            signature: Name of the signature.
            outputs: Outputs to compute; None means all outputs of the signature.

        Raises:
            InvalidRequest: A feature is unknown, or its value is invalid.
        """
        self._wanted(signature, outputs)
        embedder = self._embedder
        if embedder is None:
            raise self._closed()
        return self.predict(records_of_features(embedder.declaration, features), "example", signature, outputs)

    @property
    def can_score(self) -> bool:
        """Whether it scores records; a ``ps`` or ``dense`` sub-model does not."""
        return self._embedder is not None and SERVING_DEFAULT in self.signatures

    def read(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> Batch:
        """Parse serialized records into a batch for ``predict_batch``.

        Raises:
            InvalidRequest: A record is invalid, or does not fit the model.
        """
        self._wanted(SERVING_DEFAULT, None)
        try:
            return self._parsers.parse(records, kind)
        except (DataError, ConfigError) as error:
            raise InvalidRequest(str(error)) from error

    def predict_batch(
        self, batch: Batch, signature: str = SERVING_DEFAULT, outputs: Sequence[str] | None = None
    ) -> Arrays:
        """Score a batch that ``read`` returned."""
        return self._score(batch, self._wanted(signature, outputs))

    def _wanted(self, signature: str, outputs: Sequence[str] | None) -> list[str]:
        self._check_open()
        found = self._signature(signature)
        if found.kind != "score" or self._embedder is None:
            raise InvalidRequest(
                f"signature {signature!r} of {self.name!r} takes no records; use {_scoring(self.signatures)}"
            )
        if outputs is None:
            return list(found.outputs)
        for name in outputs:
            if name not in found.outputs:
                known = ", ".join(found.outputs)
                raise InvalidRequest(f"signature {signature!r} of {self.name!r} has no output {name!r}; it has {known}")
        return list(outputs)

    def _signature(self, name: str) -> Signature:
        found = self.signatures.get(name)
        if found is None:
            known = ", ".join(self.signatures)
            raise InvalidRequest(f"model {self.name!r} has no signature {name!r}; it has {known}")
        return found

    def _score(self, batch: Batch, outputs: Sequence[str]) -> Arrays:
        embedder = self._embedder
        if embedder is None:  # closed since the call began
            raise self._closed()
        if not batch.size:
            return {name: self._nothing(name) for name in outputs}
        plan = embedder.plan(batch)
        names, rows = self._table_names, self._rows
        flat = [np.empty((plan.rows, tensor.width), np.float32) for tensor in self._tensors]
        if rows is None:
            with self._lock.shared():  # rows and weights of one cut
                dense, tables = self._dense, self.tables
                if dense is None or tables is None:
                    raise self._closed()
                self._check_whole()
                if flat:
                    tables.gather(plan, names, flat)
            return dense.run(self._inputs(batch, flat, embedder.declaration), outputs)
        ids = {name: plan.ids(place) for place, name in enumerate(names)}

        def score_at(state: DenseState) -> Arrays:
            cut = {} if state.key is None else {"cut": state.key}
            found = rows.pull(ids, **cut)
            if flat:
                plan.pool([found[name] for name in names], flat)
            inputs = self._inputs(batch, flat, embedder.declaration)
            is_here = isinstance(state.dense, OwnProgram)
            scores = state.dense.run(inputs, outputs, **({} if is_here else cut))
            return DegradedOutputs(scores, found.missing) if isinstance(found, PartialRows) else scores

        scores = self._states.score_at_common_cut(score_at, rows)
        if scores is None:
            raise self._closed()
        return scores

    def _inputs(self, batch: Batch, flat: Sequence[Rows], declaration: Declaration) -> Arrays:
        inputs: Arrays = {
            f"layout/{tensor.name}": rows.reshape(-1, *tensor.shape)
            for tensor, rows in zip(self._tensors, flat, strict=True)
        }
        for feature in declaration.dense.values():
            if feature.dtype != "bytes":
                inputs[f"dense/{feature.name}"] = batch.dense[feature.name]
        for name in ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid"):
            inputs[name] = getattr(batch, name)
        return inputs

    def _nothing(self, output: str) -> NDArray[Any]:
        info = next(each.outputs[output] for each in self.signatures.values() if output in each.outputs)
        return np.empty((0, *(max(0, size) for size in info.shape[1:])), info.dtype)

    # --- native scoring -----------------------------------------------------------------------------------------------

    @property
    def native(self) -> _native.ServedModel | None:
        """The native form of this servable; None before ``open_native``."""
        return None if self._native is None else self._native.served

    def open_native(self, library: str, name: str = "", version: int | None = None) -> None:
        """Make the native form, and check that it scores like this servable.

        Args:
            library: Path of ONNX Runtime's library.
            name: Name of the model in responses; default: that of the manifest.
            version: Version in responses; default: that of the manifest.

        Raises:
            NotNative: Only Python can score this model, or the scores differ.
        """
        embedder = self._embedder
        if embedder is None or self.tables is None:
            raise NotNative(f"rows of {self.name!r} are on other servers, or it scores no records")
        named = (name or self.name, self.version if version is None else version)
        native = make_native_model(self.manifest, embedder.declaration, library, named)
        while True:
            dense = self._dense
            if not isinstance(dense, ProgramSession):
                raise NotNative(f"dense part of {self.name!r} is a {type(dense).__name__}, expected a ProgramSession")
            session = native.open_session(dense)
            with self._lock.exclusive(), native.exclusive():
                if self._dense is not dense:  # a cut arrived meanwhile
                    continue
                if self.tables is None:
                    raise self._closed()
                native.show(self.tables, session, not self._is_torn)
                self._native, self._native_dense = native, session
            break
        try:
            self._check_native(native)
        except BaseException:
            with self._lock.exclusive():
                self._native = self._native_dense = None
            raise

    def _check_native(self, native: NativeModel) -> None:
        """Compare the scores of an empty record; a cut may come between both, so several tries are made."""
        signature = self.signatures[SERVING_DEFAULT]
        for _ in range(_TRIES):
            try:
                expected = self.predict([b""], "example", outputs=list(signature.outputs))
            except InvalidRequest:  # the model has no row without features
                return
            scores = native.score([b""], "examples")
            if all(np.allclose(scores[name], expected[name].ravel(), 1e-4, 1e-5, equal_nan=True) for name in expected):
                return
        raise NotNative(f"native scores of {self.name!r} are {scores}, expected {expected}")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock alone, and keep native batches out; then show them the new state."""
        tables = self.tables  # replaced tables are freed after the locks are released
        with self._lock.exclusive():
            native, session = self._native, self._native_dense
            if native is None:
                yield
                return
            with native.exclusive():
                try:
                    yield
                finally:
                    session = self._native_dense
                    if self.tables is not None and session is not None:
                        native.show(self.tables, session, not self._is_torn)
        del tables

    # --- rows ---------------------------------------------------------------------------------------------------------

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return one row per id; zeros or initial values for absent ids."""
        with self._lock.shared():
            return self._table_calls().lookup(table, ids)

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table. The next prediction sees them."""
        with self._exclusive():
            self._table_calls().assign(table, ids, rows)

    def call(self, signature: str, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call a signature that takes tensors: lookup, raw_lookup, raw_assign, hashtable_assign or the dense call.

        Raises:
            InvalidRequest: An input is missing or unknown, or has another type or shape.
        """
        self._check_open()
        found = self._signature(signature)
        if found.kind == "score":
            raise InvalidRequest(f"signature {signature!r} of {self.name!r} takes records; call predict")
        key: CutKey | None = None
        if _CUT in inputs and found.kind in ("raw_lookup", "dense"):
            key = read_key(inputs[_CUT])
            inputs = {name: value for name, value in inputs.items() if name != _CUT}
        if found.kind == "dense":
            return self._call_dense(found, inputs, key)
        if key is not None:
            with self._lock.shared():
                return self._call_rows_at(signature, found, inputs, key)
        is_change = found.kind in ASSIGNMENTS
        with self._exclusive() if is_change else self._lock.shared():
            return self._table_calls().call(signature, found, inputs)

    def _call_rows_at(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike], key: CutKey) -> Arrays:
        """Return rows as of a cut, with the list of cuts; only the list if the cut is not held.

        A servable that follows no publisher returns its rows without a list.
        """
        calls, keys = self._table_calls(), self._history.keys
        if not keys:
            return calls.call(name, signature, inputs)
        cuts = {_CUTS: keys_array(keys)}
        if key not in keys:
            return cuts
        tables = self.tables
        assert tables is not None  # set together with the calls
        look = functools.partial(self._history.lookup, key, tables)
        return {**TableCalls(tables, look).call(name, signature, inputs), **cuts}

    def _call_dense(self, signature: Signature, inputs: Mapping[str, ArrayLike], key: CutKey | None) -> Arrays:
        given: Arrays = {}
        for name, info in signature.inputs.items():
            if name not in inputs:
                raise InvalidRequest(f"input {name!r} is missing; the call takes {', '.join(signature.inputs)}")
            given[name] = np.ascontiguousarray(inputs[name], info.dtype)
            if len(given[name].shape) != len(info.shape) or given[name].shape[1:] != info.shape[1:]:
                raise InvalidRequest(f"input {name!r} has shape {given[name].shape}; it must be {info.shape}")
        if len({len(value) for value in given.values()}) > 1:
            raise InvalidRequest("the inputs have different numbers of rows")
        shown, outputs = self._states.shown, list(signature.outputs)
        if not shown:
            raise self._closed()
        if key is None or shown[0].key is None:
            return shown[0].dense.run(given, outputs)
        cuts = {_CUTS: keys_array([state.key for state in shown if state.key is not None])}
        state = next((state for state in shown if state.key == key), None)
        return cuts if state is None else {**state.dense.run(given, outputs), **cuts}

    def _table_calls(self) -> TableCalls:
        self._check_open()
        self._check_whole()
        if self._calls is None:
            raise InvalidRequest(
                f"sub-model {self.manifest.sub_model!r} of {self.name!r} has no tables; call a ps sub-model"
            )
        return self._calls

    # --- changes and life cycle ---------------------------------------------------------------------------------------

    def apply(
        self,
        move: Move | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Change rows and dense weights together. Predictions see the old state or the new one.

        Args:
            move: Changes rows of the tables in use; predictions wait meanwhile.
            weights: Dense weights that changed, named as in a checkpoint.
            tables: New tables. The old tables are freed after the last prediction that reads them.
            cut: The cut that the servable shows afterwards; None if unknown.

        Raises:
            ConfigError: The servable has no tables or weights to change.

        After any other error in ``move`` the servable refuses calls until new ``tables`` arrive.
        """
        self._check_open()
        session: OwnProgram | None = None
        if weights:
            if not isinstance(self._dense, OwnProgram):
                raise ConfigError(
                    f"sub-model {self.manifest.sub_model!r} of {self.name!r} has no dense weights to change"
                )
            session = self._dense.with_weights(weights)
        native_session: _native.OnnxSession | None = None
        if self._native is not None and isinstance(session, ProgramSession):
            native_session = self._native.open_session(session)
        if (move is not None or tables is not None) and self.tables is None:
            raise ConfigError(f"sub-model {self.manifest.sub_model!r} of {self.name!r} has no tables to change")
        keeps_history = cut is not None and self.manifest.sub_model == "ps"
        ids = move.touched_ids() if keeps_history and move is not None else None
        with self._exclusive():
            undo = self._preimages(tables, ids) if keeps_history else None
            if tables is not None:
                self._replace_tables(tables)
                self._is_torn = False
            if move is not None and self.tables is not None:
                self._is_torn = True  # until all rows are changed, the tables show no cut
                move.apply(self.tables)
                self._is_torn = False
            if session is not None:
                self._dense = session
                if self._native is not None and isinstance(session, ProgramSession):
                    self._native_dense = native_session or self._native.open_session(session)
            self._publish_state(None if cut is None else key_of(cut), undo)

    def mark_following(self) -> None:
        """Mark that a follower moves this servable from now on; it shows its export, the cut ``EXPORTED``."""
        with self._lock.exclusive():
            self._is_following = True
            self._publish_state(EXPORTED, None)

    def _preimages(self, tables: MultiTable | None, ids: Touched | None) -> Undo | MultiTable | None:
        """Return the rows that a change overwrites; None if the history should restart instead."""
        present = self.tables
        if present is None or (tables is not None and self._history.keys[:1] == [EXPORTED]):
            return None
        if tables is not None:
            return present
        if ids is None:
            return None
        return {name: (ids[name], present[name].lookup(ids[name])) for name in present if name in ids}

    def _publish_state(self, key: CutKey | None, undo: Undo | MultiTable | None) -> None:
        if key is not None:
            self._shown_cut = key[0]
            self._history.record_move(key, undo)
        if self._dense is not None:
            self._states.show(key, self._dense)

    def preview(
        self,
        batches: Sequence[Batch],
        move: Move | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
    ) -> Servable:
        """Return a second servable that scores batches as this one will after ``apply``. Predictions do not wait.

        The preview holds the rows that the batches need and the rows that the move changes.

        Args:
            batches: Batches to score with the preview.
            move: As in ``apply``; applied to the tables of the preview.
            weights: As in ``apply``.
            tables: As in ``apply``.
        """
        self._check_open()
        dense, embedder = self._dense, self._embedder
        if dense is None or embedder is None:
            raise self._closed()
        if weights and isinstance(dense, OwnProgram):
            dense = dense.with_weights(weights)
        if self.tables is None:
            return Servable(self.folder, self.manifest, None, self._rows, dense)
        if tables is None:
            tables = self._rows_of(batches, embedder)
            if move is not None:
                move.apply(tables)
        return Servable(self.folder, self.manifest, tables, None, dense)

    def _rows_of(self, batches: Sequence[Batch], embedder: Embedder) -> MultiTable:
        """Return tables with the rows that the batches need."""
        plans = [embedder.plan(batch) for batch in batches if batch.size]
        with self._lock.shared():
            tables = self.tables
            if tables is None:
                raise self._closed()
            needed = tables.emptied()
            for plan in plans:
                for place, name in enumerate(self._table_names):
                    ids = plan.ids(place)
                    rows, is_there = tables[name].lookup(ids, return_found=True)
                    needed[name].assign(ids[is_there], rows[is_there])
        return needed

    def _replace_tables(self, tables: MultiTable) -> None:
        self.tables = tables
        self._calls = TableCalls(tables)
        if self._embedder is not None:
            self._embedder.store = tables

    def warm_up(self) -> int:
        """Replay the warm-up requests of the export; return their number.

        Raises:
            ServingError: A request fails. The version must not be served.
        """
        if not self.manifest.warmup:
            return 0
        count = 0
        for log in read_tfrecords(self.folder / WARMUP):
            request = decode_warmup(log)
            yield_gil()
            kind: Any = RECORD_INPUTS[request.input]
            self.predict(list(request.records), kind, request.signature, request.output_filter or None)
            yield_gil()
            count += 1
        return count

    def before_close(self, callback: Callable[[], None]) -> None:
        """Register a callback that ``close`` calls first."""
        self._before_close.append(callback)

    def close(self) -> None:
        """Release tables and program. Current calls finish; later calls raise ``ModelNotReady``."""
        while self._before_close:
            self._before_close.pop()()
        with self._lock.exclusive():
            # Native batches of queued requests may still read; the native form is freed after the last of them.
            self._native = self._native_dense = None
            self._is_closed = True
            tables = [] if self.tables is None else [self.tables[name] for name in self.tables]
            self.tables = self._calls = self._embedder = self._dense = None
            self._states.close()
            self._history = RowHistory()
        yield_gil()
        while tables:  # one by one: unmapping holds the interpreter lock
            tables.pop()
            yield_gil()

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _check_whole(self) -> None:
        if self._is_torn:
            raise ModelNotReady(
                f"rows of version {self.version} of model {self.name!r} are incomplete after a failed update; retry, "
                "or use another replica"
            )

    def _closed(self) -> ModelNotReady:
        return ModelNotReady(f"version {self.version} of model {self.name!r} is unloaded; request another version")


def _table_files(manifest: ExportManifest) -> set[str]:
    return {file.name for file in manifest.files if file.name.startswith(f"{TABLES}/")}


def _pause(name: str, done: int, total: int) -> None:
    yield_gil()


def _open_program(folder: Path, program: DenseProgram, threads: int) -> OwnProgram:
    if program.kind == "torch":
        return TorchSession(folder / TORCH_PROGRAM, program, threads=threads)
    return ProgramSession(folder / PROGRAM, program, threads=threads)


def _load_tables(folder: Path, manifest: ExportManifest, in_memory: bool) -> MultiTable:
    shared = manifest.shared_tables
    try:
        if shared is None:
            tables = MultiTable.load_images(folder / TABLES, in_memory=in_memory)
        else:
            tables = MultiTable.load_serving(
                os.path.normpath(folder / shared.path),
                names=[table.name for table in manifest.tables],
                shard=manifest.shard or (0, 1),
                skip_zero_rows=shared.skip_zero_rows,
                full_precision=shared.full_precision,
                generation=shared.generation,
            )
    except (SnapshotCorrupt, SchemaMismatch) as error:
        raise ManifestInvalid(str(error)) from error
    if list(tables) != [table.name for table in manifest.tables]:
        raise ManifestInvalid(
            f"'{folder / TABLES}' has tables {', '.join(tables)}, expected "
            f"{', '.join(table.name for table in manifest.tables)}; export the model again"
        )
    return tables


def _check_parts(folder: Path, tables: MultiTable | None, rows: EntryRows | None, dense: object | None) -> None:
    if tables is None and rows is None:
        raise ConfigError(
            f"'{folder}' is the `entry` of a distributed export; pass rows= (an EntryRows for its ps_* shards)"
        )
    if dense is None:
        raise ConfigError(
            f"'{folder}' is the `entry` of a distributed export; pass dense= (a DenseRunner for its dense_0)"
        )


def _scoring(signatures: Mapping[str, Signature]) -> str:
    names = [name for name, each in signatures.items() if each.kind == "score"]
    return ", ".join(names) or "the entry of the model"
