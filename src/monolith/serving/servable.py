"""``Servable``: an export in memory, ready to be asked. Thread safe, and changed by ``apply`` and ``assign`` only.

Records go through the parser, the declaration and the layout kernel that training uses, then through the dense program.
Nothing here knows of requests over a network, of versions beside this one, or of torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts.checkpoint_manifest import verify_files
from monolith.artifacts.delta_log import Cut
from monolith.artifacts.export_manifest import (
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
from monolith.core.errors import ConfigError, DataError, InvalidRequest, ManifestInvalid, ModelNotReady, SnapshotCorrupt
from monolith.core.throttle import yield_gil
from monolith.data import Batch
from monolith.data.records.tfrecord import read_tfrecords
from monolith.data.sources.base import RecordKind
from monolith.embedding import MultiTable
from monolith.embedding.store import Rows
from monolith.features import Declaration, Embedder
from monolith.serving.cut_history import EXPORTED, CutKey, RowHistory, Undo, key_of, keys_array, read_key
from monolith.serving.dense_states import DenseState, DenseStates
from monolith.serving.loaded_model import DegradedOutputs
from monolith.serving.servable_features import records_of_features
from monolith.serving.servable_gate import Gate
from monolith.serving.servable_parsers import Parsers
from monolith.serving.servable_parts import Arrays, DenseRunner, OwnProgram, PartialRows, RowSource
from monolith.serving.servable_tables import TableCalls
from monolith.sync.row_moves import Touched

__all__ = ["Servable"]

_CUT, _CUTS = "cut", "cuts"
_PARTS = ("entry", "dense")
"""Sub-models that compute the dense part of an answer whose rows are elsewhere."""

# One version of a model after another declares the same.
_declaration = functools.lru_cache(maxsize=64)(Declaration.from_json)


class Servable:
    """One version of a model, or of a sub-model. Make it with ``load``.

    Attributes:
        folder: Where it was loaded from.
        manifest: What it is.
        tables: Its rows; None where they are elsewhere. Change them through ``apply`` only.
    """

    def __init__(
        self,
        folder: Path,
        manifest: ExportManifest,
        tables: MultiTable | None,
        rows: RowSource | None,
        dense: DenseRunner | OwnProgram | None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tables = tables
        self._gate = Gate()
        self._dense = dense
        self._is_closed = False
        self._before_close: list[Callable[[], None]] = []
        self.on_scored: Callable[[Sequence[bytes | bytearray | memoryview], RecordKind], None] | None = None
        """Told of records that were scored."""
        self._embedder: Embedder | None = None
        self._calls = None if tables is None else TableCalls(tables)
        self._rows = rows
        self._history = RowHistory()
        self._states = DenseStates(dense, keeps_earlier=manifest.sub_model in _PARTS)
        source = tables if rows is None else rows
        if manifest.declaration is not None and source is not None:
            declaration = _declaration(json.dumps(manifest.declaration))
            yield_gil()
            self._embedder = Embedder(declaration, source)  # type: ignore[arg-type]  # pulls only
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
        rows: RowSource | None = None,
        dense: DenseRunner | OwnProgram | None = None,
        manifest: ExportManifest | None = None,
    ) -> Servable:
        """Load an export.

        Args:
            folder: The folder of one version.
            threads: Threads that the dense part of one call may use.
            verify: What is checked of every file first. Tables are mapped, not read: that their indexes are sound is
                always checked, that every row is as it was written only with ``checksums``.
            in_memory: Read the tables into memory of its own instead of mapping their files.
            rows: Where an ``entry`` gets rows.
            dense: What computes the dense part of an ``entry`` that has none.
            manifest: What the folder's manifest says, where it was read already.

        Raises:
            ArtifactError: There is no export in the folder, or it is not what was written; the text says what is wrong.
            ConfigError: An ``entry`` was given nobody to ask.
        """
        path = Path(folder)
        manifest = manifest or read_export_manifest(path)
        every = {file.name for file in manifest.files}
        verify_files(path, manifest, size_only=() if verify == "checksums" else every)
        yield_gil()
        tables = _load_tables(path, manifest, in_memory) if manifest.has_tables else None
        if manifest.dense is not None and dense is None:
            dense = _open_program(path, manifest.dense, threads)
            yield_gil()
        if manifest.declaration is not None:
            _check_parts(path, tables, rows, dense)
        return cls(path, manifest, tables, rows, dense)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version's number."""
        return self.manifest.version

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count) of the ids that its tables hold: ``uint64(id) % count == index``."""
        return self.manifest.shard if self.manifest.sub_model == "ps" and self.manifest.shard else (0, 1)

    @property
    def has_weights(self) -> bool:
        """Whether the dense part is here, and takes other weights."""
        return isinstance(self._dense, OwnProgram)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """What it can be asked."""
        return self.manifest.signatures

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
            records: The messages; the rows of all of them count, in order.
            kind: Which message they are.
            signature: What is asked.
            outputs: Names of the signature's outputs to compute; None = all.

        Returns:
            Output name to array with one row per example.

        Raises:
            InvalidRequest: The records cannot be read or do not fit the model, or there is no such signature.
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
        """Score examples whose features are given by name, as JSON has them.

        Args:
            features: A mapping of feature name to a list with one value per example; or a list of mappings, one per
                example. The value of a sparse feature is a plain value or a list of them, which become ids as those of
                records do, or ``{"fids": [...]}``; that of a dense feature is a number or a list of them.
            signature: What is asked.
            outputs: Names of the signature's outputs to compute; None = all.

        Raises:
            InvalidRequest: A feature is unknown, or its value is none.
        """
        self._wanted(signature, outputs)
        embedder = self._embedder
        if embedder is None:
            raise self._closed()
        return self.predict(records_of_features(embedder.declaration, features), "example", signature, outputs)

    @property
    def can_score(self) -> bool:
        """Whether it takes records: a sub-model with rows or the dense part alone does not."""
        return self._embedder is not None and SERVING_DEFAULT in self.signatures

    def read(self, records: Sequence[bytes | bytearray | memoryview], kind: RecordKind) -> Batch:
        """Return the batch that serialized records are, for ``predict_batch``.

        Raises:
            InvalidRequest: The records cannot be read, or do not fit the model.
        """
        self._wanted(SERVING_DEFAULT, None)
        try:
            return self._parsers.parse(records, kind)
        except (DataError, ConfigError) as error:
            raise InvalidRequest(str(error)) from error

    def predict_batch(
        self, batch: Batch, signature: str = SERVING_DEFAULT, outputs: Sequence[str] | None = None
    ) -> Arrays:
        """Score a batch that was read with the model's schema."""
        return self._score(batch, self._wanted(signature, outputs))

    def _wanted(self, signature: str, outputs: Sequence[str] | None) -> list[str]:
        self._check_open()
        found = self._signature(signature)
        if found.kind != "score" or self._embedder is None:
            raise InvalidRequest(
                f"signature {signature!r} of {self.name!r} does not take records; use {_scoring(self.signatures)}"
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
            with self._gate.shared():  # rows and weights of one cut
                dense, tables = self._dense, self.tables
                if dense is None or tables is None:
                    raise self._closed()
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

        scores = self._states.agreed(score_at, rows)
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

    # --- rows ---------------------------------------------------------------------------------------------------------

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return the row of every id of a table; zeros, or first values, where there is none."""
        with self._gate.shared():
            return self._table_calls().lookup(table, ids)

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table; the next prediction sees them."""
        with self._gate.exclusive():
            self._table_calls().assign(table, ids, rows)

    def call(self, signature: str, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call a signature that takes tensors: lookup, raw_lookup, raw_assign, hashtable_assign or the dense call.

        Raises:
            InvalidRequest: An input is missing, unknown, or of another type or shape.
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
            with self._gate.shared():
                return self._call_rows_at(signature, found, inputs, key)
        is_change = found.kind in ("raw_assign", "hashtable_assign")
        with self._gate.exclusive() if is_change else self._gate.shared():
            return self._table_calls().call(signature, found, inputs)

    def _call_rows_at(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike], key: CutKey) -> Arrays:
        """Answer as of a cut, or say only which cuts there are; as ever where nothing is followed."""
        calls, keys = self._table_calls(), self._history.keys
        if not keys:
            return calls.call(name, signature, inputs)
        cuts = {_CUTS: keys_array(keys)}
        if key not in keys:
            return cuts
        tables = self.tables
        assert tables is not None  # there are calls
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
        if self._calls is None:
            raise InvalidRequest(f"sub-model {self.manifest.sub_model!r} of {self.name!r} holds no tables; ask its ps")
        return self._calls

    # --- change and end -----------------------------------------------------------------------------------------------

    def apply(
        self,
        update: Callable[[MultiTable], None] | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
        touched: Callable[[], Touched | None] | None = None,
    ) -> None:
        """Move to another cut: change rows and dense weights, in one step as predictions see it.

        Args:
            update: Changes the tables; no prediction reads rows meanwhile.
            weights: Dense weights that changed, named as in a checkpoint.
            tables: Take the place of the tables, which go when the last prediction is done with them.
            cut: What it then shows; None: not said.
            touched: Gives the ids that ``update`` changes, by table; None where that are perhaps all.

        Raises:
            ConfigError: There is nothing here of what is to change.
        """
        self._check_open()
        session: OwnProgram | None = None
        if weights:
            if not isinstance(self._dense, OwnProgram):
                raise ConfigError(
                    f"sub-model {self.manifest.sub_model!r} of {self.name!r} has no dense weights to change"
                )
            session = self._dense.with_weights(weights)
        if (update is not None or tables is not None) and self.tables is None:
            raise ConfigError(f"sub-model {self.manifest.sub_model!r} of {self.name!r} has no tables to change")
        is_asked = cut is not None and self.manifest.sub_model == "ps"
        ids = touched() if is_asked and touched is not None else None
        with self._gate.exclusive():
            undo = self._undo(tables, ids) if is_asked else None
            if tables is not None:
                self._replace_tables(tables)
            if update is not None and self.tables is not None:
                update(self.tables)
            if session is not None:
                self._dense = session
            self._show(None if cut is None else key_of(cut), undo)

    def follow(self) -> None:
        """Note that it follows from now on: it shows its export, and entry and parts answer together."""
        with self._gate.exclusive():
            self._show(EXPORTED, None)

    def _undo(self, tables: MultiTable | None, ids: Touched | None) -> Undo | MultiTable | None:
        """Return what brings the rows of now back, which are about to change; None where that would be too much."""
        now = self.tables
        if now is None or (tables is not None and self._history.keys[:1] == [EXPORTED]):
            return None
        if tables is not None:
            return now
        return None if ids is None else {name: (ids[name], now[name].lookup(ids[name])) for name in now if name in ids}

    def _show(self, key: CutKey | None, undo: Undo | MultiTable | None) -> None:
        if key is not None:
            self._history.moved(key, undo)
        if self._dense is not None:
            self._states.show(key, self._dense)

    def foreseen(
        self,
        batches: Sequence[Batch],
        update: Callable[[MultiTable], None] | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
    ) -> Servable:
        """Return a model beside this one that scores some batches as this one will after ``apply``; nobody waits.

        It holds the rows that the batches need, and those that the update changes.

        Args:
            batches: What it will be asked.
            update: As of ``apply``; called for tables of its own.
            weights: As of ``apply``.
            tables: As of ``apply``.
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
            if update is not None:
                update(tables)
        return Servable(self.folder, self.manifest, tables, None, dense)

    def _rows_of(self, batches: Sequence[Batch], embedder: Embedder) -> MultiTable:
        """Return tables with the rows that batches need."""
        plans = [embedder.plan(batch) for batch in batches if batch.size]
        with self._gate.shared():
            tables = self.tables
            if tables is None:
                raise self._closed()
            found = tables.emptied()
            for plan in plans:
                for place, name in enumerate(self._table_names):
                    ids = plan.ids(place)
                    rows, is_there = tables[name].lookup(ids, return_found=True)
                    found[name].assign(ids[is_there], rows[is_there])
        return found

    def _replace_tables(self, tables: MultiTable) -> None:
        self.tables = tables
        self._calls = TableCalls(tables)
        if self._embedder is not None:
            self._embedder.store = tables

    def warm_up(self) -> int:
        """Answer the warm-up requests that the export carries, and return how many there were.

        Raises:
            ServingError: One of them cannot be answered: the version is not fit to be served.
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

    def before_close(self, act: Callable[[], None]) -> None:
        """Have ``act`` called when it is closed, before it lets go of anything."""
        self._before_close.append(act)

    def close(self) -> None:
        """Let go of tables and program; calls under way end well, later ones are refused."""
        while self._before_close:
            self._before_close.pop()()
        with self._gate.exclusive():
            self._is_closed = True
            tables = [] if self.tables is None else [self.tables[name] for name in self.tables]
            self.tables = self._calls = self._embedder = self._dense = None
            self._states.close()
            self._history = RowHistory()
        yield_gil()
        while tables:  # one by one: to unmap them all takes a while, in which nothing else in Python can run
            tables.pop()
            yield_gil()

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> ModelNotReady:
        return ModelNotReady(f"version {self.version} of model {self.name!r} was unloaded; ask for another version")


def _open_program(folder: Path, program: DenseProgram, threads: int) -> OwnProgram:
    if program.kind == "torch":
        return TorchSession(folder / TORCH_PROGRAM, program, threads=threads)
    return ProgramSession(folder / PROGRAM, program, threads=threads)


def _load_tables(folder: Path, manifest: ExportManifest, in_memory: bool) -> MultiTable:
    try:
        tables = MultiTable.load_images(folder / TABLES, in_memory=in_memory)
    except SnapshotCorrupt as error:
        raise ManifestInvalid(str(error)) from error
    if list(tables) != [table.name for table in manifest.tables]:
        raise ManifestInvalid(
            f"'{folder / TABLES}' holds the tables {', '.join(tables)}; the manifest says "
            f"{', '.join(table.name for table in manifest.tables)}"
        )
    return tables


def _check_parts(folder: Path, tables: MultiTable | None, rows: RowSource | None, dense: object | None) -> None:
    if tables is None and rows is None:
        raise ConfigError(f"'{folder}' is an entry, whose rows are in ps sub-models; give it who to ask: rows=")
    if dense is None:
        raise ConfigError(f"'{folder}' is an entry, whose dense part is in dense_0; give it who to ask: dense=")


def _scoring(signatures: Mapping[str, Signature]) -> str:
    names = [name for name, each in signatures.items() if each.kind == "score"]
    return ", ".join(names) or "the entry of the model"
