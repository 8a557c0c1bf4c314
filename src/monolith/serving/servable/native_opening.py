"""Gives a servable its native form, and compares the scores of both before requests see it."""

from __future__ import annotations

import numpy as np

from monolith.artifacts.export_manifest import SERVING_DEFAULT
from monolith.artifacts.program_session import ProgramSession
from monolith.core.errors import InvalidRequest
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.native_model import NativeModel, NotNative, make_native_model
from monolith.serving.servable.record_scoring import RecordScoring
from monolith.serving.servable.scorers import ModelInputs

__all__ = ["open_native"]

_TRIES = 5


def open_native(
    state: CutState, inputs: ModelInputs | None, scoring: RecordScoring, library: str, named: tuple[str, int]
) -> None:
    """Make the native form; ``Servable.open_native`` describes it.

    Raises:
        NotNative: Only Python can score the model, or the scores differ.
    """
    manifest = state.manifest
    if inputs is None or state.tables is None:
        raise NotNative(f"rows of {manifest.name!r} are on other servers, or it scores no records")
    native = make_native_model(manifest, inputs.declaration, library, named)
    while True:
        dense = state.dense
        if not isinstance(dense, ProgramSession):
            raise NotNative(f"dense part of {manifest.name!r} is a {type(dense).__name__}, expected a ProgramSession")
        native.session = native.open_session(dense)
        if state.show_native(native, dense):  # else a cut arrived meanwhile
            break
    try:
        _compare_scores(state, scoring, native)
    except BaseException:
        state.drop_native()
        raise


def _compare_scores(state: CutState, scoring: RecordScoring, native: NativeModel) -> None:
    """Compare the scores of an empty record; a cut may come between both, so several tries are made."""
    outputs = list(state.manifest.signatures[SERVING_DEFAULT].outputs)
    for _ in range(_TRIES):
        try:
            expected = scoring.predict([b""], "example", SERVING_DEFAULT, outputs)
        except InvalidRequest:  # the model has no row without features
            return
        scores = native.score([b""], "examples")
        if all(np.allclose(scores[name], expected[name].ravel(), 1e-4, 1e-5, equal_nan=True) for name in expected):
            return
    raise NotNative(f"native scores of {state.manifest.name!r} are {scores}, expected {expected}")
