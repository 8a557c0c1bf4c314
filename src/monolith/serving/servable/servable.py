"""``Servable``: a loaded export that answers predictions.

Records pass the parser, the declaration and the layout kernel of training, then the dense program. ``RecordScoring``
scores, ``ServedTables`` answers table signatures, and ``CutState`` holds rows and weights. Only ``apply`` and
``assign`` change a servable: predictions see the state before or after a change. Thread safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from numpy.typing import ArrayLike, NDArray

from monolith import _native
from monolith.artifacts.delta_log import Cut
from monolith.artifacts.export_manifest import SERVING_DEFAULT, ExportManifest, Signature, read_export_manifest
from monolith.core.errors import InvalidRequest
from monolith.core.throttle import yield_gil
from monolith.data import Batch
from monolith.data.sources.base import RecordKind
from monolith.embedding import MultiTable
from monolith.embedding.store import Rows
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.features import describe_features
from monolith.serving.servable.loading import TableFiles, check_parts, load_tables, open_program
from monolith.serving.servable.native_opening import open_native
from monolith.serving.servable.parts import Arrays, DenseRunner, EntryRows, OwnProgram, Records
from monolith.serving.servable.preview import preview_parts
from monolith.serving.servable.record_scoring import RecordScoring, find_signature
from monolith.serving.servable.scorers import LocalScorer, ModelInputs, RemoteScorer, Scorer
from monolith.serving.servable.served_tables import ServedTables
from monolith.serving.versions.loaded_model import FeatureInfo
from monolith.sync.row_updates import Move

__all__ = ["Servable"]


class Servable:
    """One version of a model or sub-model. Create it with ``load``.

    Attributes:
        folder: Folder of the export.
        manifest: Manifest of the export.
    """

    def __init__(
        self,
        folder: Path,
        manifest: ExportManifest,
        tables: MultiTable | None,
        rows: EntryRows | None,
        dense: DenseRunner | OwnProgram | None,
        files: TableFiles | None = None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._files = files
        self._before_close: list[Callable[[], None]] = []
        self._rows = rows
        self._state = state = CutState(manifest, tables, dense)
        self._inputs: ModelInputs | None = None
        scorer: Scorer | None = None
        if manifest.declaration is not None and (tables is not None or rows is not None):
            self._inputs = ModelInputs(manifest.declaration)
            yield_gil()
            scorer = LocalScorer(state, self._inputs) if rows is None else RemoteScorer(state, self._inputs, rows)
        self._scoring = RecordScoring(state, self._inputs, scorer)
        self._served = ServedTables(state)

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
        files = TableFiles(path, manifest)
        files.verify_before_load(is_complete=verify == "checksums" or in_memory, is_mapped=not in_memory)
        yield_gil()
        tables = load_tables(path, manifest, in_memory) if manifest.has_tables else None
        if manifest.dense is not None and dense is None:
            dense = open_program(path, manifest.dense, threads)
            yield_gil()
        if manifest.declaration is not None:
            check_parts(path, tables, rows, dense)
        return cls(path, manifest, tables, rows, dense, files)

    # --- description ---

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
    def tables(self) -> MultiTable | None:
        """Rows; None if other servers hold them. Change them through ``apply`` only."""
        return self._state.tables

    @property
    def is_part(self) -> bool:
        """Whether other servers hold parts of the same model."""
        return self.manifest.sub_model != "standalone"

    @property
    def is_following(self) -> bool:
        """Whether a follower moves this servable."""
        return self._state.is_following

    @property
    def shown_cut(self) -> int:
        """The number of the cut that this servable shows; 0 for its export."""
        return self._state.shown_cut

    @property
    def has_weights(self) -> bool:
        """Whether this servable holds the dense part, so that ``apply`` can change its weights."""
        return isinstance(self._state.dense, OwnProgram)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""
        return self.manifest.signatures

    @property
    def features(self) -> tuple[FeatureInfo, ...]:
        """Features of the model with the types that it was trained on; empty if it scores no records."""
        return () if self._inputs is None else describe_features(self._inputs.declaration)

    @property
    def can_score(self) -> bool:
        """Whether it scores records; a ``ps`` or ``dense`` sub-model does not."""
        return self._inputs is not None and SERVING_DEFAULT in self.signatures

    # --- requests ---

    def predict(
        self,
        records: Records,
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
        return self._scoring.predict(records, kind, signature, outputs)

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
                ``{"fids": [...]}``. A dense feature takes a number or a list of numbers. None is a missing value.
            signature: Name of the signature.
            outputs: Outputs to compute; None means all outputs of the signature.

        Raises:
            InvalidRequest: A feature is unknown, or its value is invalid.
        """
        return self._scoring.predict_features(features, signature, outputs)

    def read(self, records: Records, kind: RecordKind) -> Batch:
        """Parse serialized records into a batch for ``predict_batch``.

        Raises:
            InvalidRequest: A record is invalid, or does not fit the model.
        """
        return self._scoring.read(records, kind)

    def predict_batch(
        self, batch: Batch, signature: str = SERVING_DEFAULT, outputs: Sequence[str] | None = None
    ) -> Arrays:
        """Score a batch that ``read`` returned."""
        return self._scoring.predict_batch(batch, signature, outputs)

    @property
    def on_scored(self) -> Callable[[Records, RecordKind], None] | None:
        """Called with the records of every successful prediction; may be set."""
        return self._scoring.on_scored

    @on_scored.setter
    def on_scored(self, callback: Callable[[Records, RecordKind], None] | None) -> None:
        self._scoring.on_scored = callback

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return one row per id; zeros or initial values for absent ids."""
        return self._served.lookup(table, ids)

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table. The next prediction sees them."""
        self._served.assign(table, ids, rows)

    def call(self, signature: str, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call a signature that takes tensors: lookup, raw_lookup, raw_assign, hashtable_assign or the dense call.

        Raises:
            InvalidRequest: An input is missing or unknown, or has another type or shape.
        """
        self._state.check_open()
        declared = find_signature(self._state, signature)
        if declared.kind == "score":
            raise InvalidRequest(f"signature {signature!r} of {self.name!r} takes records; call predict")
        return self._served.call(signature, declared, inputs)

    # --- changes ---

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
        self._state.apply(move, weights, tables, cut)

    def mark_following(self) -> None:
        """Mark that a follower moves this servable from now on; it shows its export, the cut ``EXPORTED``."""
        self._state.mark_following()

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
        tables, dense = preview_parts(self._state, self._inputs, batches, move, weights, tables)
        return Servable(self.folder, self.manifest, tables, self._rows, dense)

    # --- life cycle ---

    @property
    def native(self) -> _native.ServedModel | None:
        """The native form of this servable; None before ``open_native``."""
        return None if self._state.native is None else self._state.native.served

    def open_native(self, library: str, name: str = "", version: int | None = None) -> None:
        """Make the native form, and check that it scores like this servable.

        Args:
            library: Path of ONNX Runtime's library.
            name: Name of the model in responses; default: that of the manifest.
            version: Version in responses; default: that of the manifest.

        Raises:
            NotNative: Only Python can score this model, or the scores differ.
        """
        named = (name or self.name, self.version if version is None else version)
        open_native(self._state, self._inputs, self._scoring, library, named)

    def warm_up(self) -> int:
        """Replay the warm-up requests of the export; return their number.

        Raises:
            ServingError: A request fails. The version must not be served.
        """
        return self._scoring.replay_warm_up(self.folder)

    def verify_tables(self, is_wanted: Callable[[], bool]) -> None:
        """Check every byte of mapped tables; the load has checked all other files.

        A file that was removed or replaced since the load is skipped: its rows stay mapped.

        Args:
            is_wanted: Called between files; False ends the check.

        Raises:
            ManifestInvalid: A file differs from the export.
        """
        if self._files is not None:
            self._files.verify_tables(is_wanted)

    def notice_file_changes(self) -> bool:
        """Return whether mapped files changed since the last call; ``verify_tables`` then checks them again.

        Writing to a mapped file changes the rows in service. This notices such writes, so that a damaged version does
        not stay in service. Removing or replacing a file changes no row and is not noticed.
        """
        return self._files is not None and self._files.notice_changes()

    def before_close(self, callback: Callable[[], None]) -> None:
        """Register a callback that ``close`` calls first."""
        self._before_close.append(callback)

    def close(self) -> None:
        """Release tables and program. Current calls finish; later calls raise ``ModelNotReady``."""
        while self._before_close:
            self._before_close.pop()()
        released = self._state.close()
        tables = [] if released is None else [released[name] for name in released]
        del released
        yield_gil()
        while tables:  # one by one: unmapping holds the interpreter lock
            tables.pop()
            yield_gil()
        _native.release_freed_memory()
