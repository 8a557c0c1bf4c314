"""``CutState``: the rows, the dense part and the recent cuts of one servable.

Rows and weights change together, in ``apply`` and in ``exclusive``, under a read-write lock. A reader inside
``shared`` sees one cut. A native form of the servable has its own lock. ``exclusive`` holds both, and shows the native
form the new state before it releases them. Thread safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from numpy.typing import NDArray

from monolith.artifacts.delta_log import Cut
from monolith.artifacts.export_manifest import ExportManifest
from monolith.artifacts.program_session import ProgramSession
from monolith.core.errors import ConfigError, ModelNotReady
from monolith.core.rwlock import ReadWriteLock
from monolith.embedding import MultiTable
from monolith.serving.servable.cut_history import EXPORTED, REPLACED_TABLES_S, CutKey, RowHistory, Undo, key_of
from monolith.serving.servable.dense_states import DenseStates
from monolith.serving.servable.native_model import NativeModel
from monolith.serving.servable.parts import DenseRunner, OwnProgram
from monolith.sync.row_updates import Move

__all__ = ["CutState"]


class CutState:
    """State of one servable at its newest cut.

    Args:
        manifest: Manifest of the export.
        tables: Rows; None if other servers hold them.
        dense: Dense part; None for a sub-model without one.

    Attributes:
        history: Rows at the last few cuts, of a ``ps`` sub-model.
        states: Dense parts at the last few cuts, of an ``entry`` or ``dense`` sub-model.
        shown_cut: Number of the newest cut; 0 for the export.
        is_following: Whether a follower moves this state.
        native: Native form; None without one.
    """

    def __init__(
        self, manifest: ExportManifest, tables: MultiTable | None, dense: DenseRunner | OwnProgram | None
    ) -> None:
        self.manifest = manifest
        self.tables = tables
        self.dense = dense
        self.history = RowHistory()
        self.states = DenseStates(dense, keeps_earlier=manifest.sub_model in ("entry", "dense"))
        self.shown_cut = 0
        self.is_following = False
        self.native: NativeModel | None = None
        self._lock = ReadWriteLock()
        self._is_closed = self._is_torn = False

    # --- reading ---

    def shared(self) -> AbstractContextManager[None]:
        """Keep changes out while the caller reads."""
        return self._lock.shared()

    def check_open(self) -> None:
        """Raise ``ModelNotReady`` after ``close``."""
        if self._is_closed:
            raise self.closed_error()

    def check_whole(self) -> None:
        """Raise ``ModelNotReady`` if a failed update left the rows between two cuts."""
        if self._is_torn:
            raise ModelNotReady(
                f"rows of version {self.manifest.version} of model {self.manifest.name!r} are incomplete after a "
                "failed update; retry, or use another replica"
            )

    def closed_error(self) -> ModelNotReady:
        """Return the error of a call after ``close``."""
        return ModelNotReady(
            f"version {self.manifest.version} of model {self.manifest.name!r} is unloaded; request another version"
        )

    # --- changes ---

    def apply(
        self,
        move: Move | None,
        weights: Mapping[str, NDArray[Any]] | None,
        tables: MultiTable | None,
        cut: Cut | None,
    ) -> None:
        """Change rows and dense weights together; ``Servable.apply`` describes the arguments."""
        self.check_open()
        session = self.with_weights(weights) if weights else None
        native, native_session = self.native, None
        if native is not None and isinstance(session, ProgramSession):
            native_session = native.open_session(session)
        if (move is not None or tables is not None) and self.tables is None:
            raise self._lacks("tables")
        keeps_history = cut is not None and self.manifest.sub_model == "ps"
        ids = move.touched_ids() if keeps_history and move is not None else None
        with self.exclusive():
            old = self.tables if keeps_history and not self._is_torn else None  # torn tables are of no cut
            undo = None if old is None else self.history.preimages(old, tables, ids)
            if tables is not None:
                self.tables, self._is_torn = tables, False
            if move is not None and self.tables is not None:
                self._is_torn = True  # until all rows are changed, the tables show no cut
                move.apply(self.tables)
                self._is_torn = False
            if session is not None:
                self.dense = session
                if self.native is not None and isinstance(session, ProgramSession):
                    self.native.session = native_session or self.native.open_session(session)
            self._publish(None if cut is None else key_of(cut), undo)
        if isinstance(undo, MultiTable):
            timer = threading.Timer(REPLACED_TABLES_S, self._drop_replaced_tables)
            timer.daemon = True
            timer.start()

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> OwnProgram:
        """Return the dense part with other weights; takes as long as loading the program.

        Raises:
            ConfigError: The servable has no dense weights.
        """
        if not isinstance(self.dense, OwnProgram):
            raise self._lacks("dense weights")
        return self.dense.with_weights(weights)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all readers and native batches out while the caller changes rows."""
        tables = self.tables  # replaced tables are freed after the locks are released
        with self._lock.exclusive():
            native = self.native
            if native is None:
                yield
                return
            with native.exclusive():
                try:
                    yield
                finally:
                    if self.tables is not None:
                        native.show(self.tables, not self._is_torn)
        del tables

    def mark_following(self) -> None:
        """Mark that a follower moves this state from now on; the state shows the cut ``EXPORTED``."""
        with self._lock.exclusive():
            self.is_following = True
            self._publish(EXPORTED, None)

    def show_native(self, native: NativeModel, dense: ProgramSession) -> bool:
        """Give the servable a native form with the rows of one cut; return False if ``dense`` is out of date."""
        with self._lock.exclusive(), native.exclusive():
            if self.dense is not dense:
                return False
            if self.tables is None:
                raise self.closed_error()
            native.show(self.tables, not self._is_torn)
            self.native = native
        return True

    def drop_native(self) -> None:
        """Release the native form. Native batches of queued requests finish first; the last of them frees it."""
        with self._lock.exclusive():
            self.native = None

    def close(self) -> MultiTable | None:
        """Release all; return the tables for the caller to free. Current readers finish; later calls raise."""
        with self._lock.exclusive():
            self.native = None
            self._is_closed = True
            tables, self.tables, self.dense = self.tables, None, None
            self.states.close()
            self.history = RowHistory()
        return tables

    # --- inside ---

    def _lacks(self, parts: str) -> ConfigError:
        return ConfigError(f"sub-model {self.manifest.sub_model!r} of {self.manifest.name!r} has no {parts} to change")

    def _drop_replaced_tables(self) -> None:
        with self._lock.exclusive():
            self.history.drop_replaced_tables(REPLACED_TABLES_S)

    def _publish(self, key: CutKey | None, undo: Undo | MultiTable | None) -> None:
        if key is not None:
            self.shown_cut = key[0]
            self.history.record_move(key, undo)
        if self.dense is not None:
            self.states.show(key, self.dense)
