"""``RecordScoring``: serialized records or features by name to outputs, with the checks of a request. Thread safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.export_manifest import RECORD_INPUTS, SERVING_DEFAULT, WARMUP, Signature
from monolith.artifacts.export_warmup import decode_warmup
from monolith.core.errors import ConfigError, DataError, InvalidRequest
from monolith.core.throttle import yield_gil
from monolith.data import Batch
from monolith.data.records.tfrecord import read_tfrecords
from monolith.data.sources.base import RecordKind
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.features import records_of_features
from monolith.serving.servable.parsers import Parsers
from monolith.serving.servable.parts import Arrays, Records
from monolith.serving.servable.scorers import ModelInputs, Scorer

__all__ = ["RecordScoring", "find_signature"]


class RecordScoring:
    """Predictions of one servable.

    Args:
        state: Rows and weights; its manifest has the signatures.
        inputs: Features of the model; None for a sub-model that scores no records.
        scorer: Scorer of batches; None without features.
    """

    def __init__(self, state: CutState, inputs: ModelInputs | None, scorer: Scorer | None) -> None:
        self._state = state
        self._inputs = inputs
        self._scorer = scorer
        self._parsers = None if inputs is None else Parsers(inputs.declaration.schema())
        self.on_scored: Callable[[Records, RecordKind], None] | None = None
        """Called with the records of every successful prediction."""

    def predict(self, records: Records, kind: RecordKind, signature: str, outputs: Sequence[str] | None) -> Arrays:
        """Score serialized records; ``Servable.predict`` describes the arguments."""
        wanted = self._check_outputs(signature, outputs)
        try:
            scores = self._score(self._parse(records, kind), wanted)
        except (DataError, ConfigError) as error:
            raise InvalidRequest(str(error)) from error
        if self.on_scored is not None:
            self.on_scored(records, kind)
        return scores

    def predict_features(
        self,
        features: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        signature: str,
        outputs: Sequence[str] | None,
    ) -> Arrays:
        """Score features by name; ``Servable.predict_features`` describes the arguments."""
        self._check_outputs(signature, outputs)
        assert self._inputs is not None  # ``_check_outputs`` has checked it
        records = records_of_features(self._inputs.declaration, features)
        return self.predict(records, "example", signature, outputs)

    def read(self, records: Records, kind: RecordKind) -> Batch:
        """Parse serialized records into a batch for ``predict_batch``.

        Raises:
            InvalidRequest: A record is invalid, or does not fit the model.
        """
        self._check_outputs(SERVING_DEFAULT, None)
        try:
            return self._parse(records, kind)
        except (DataError, ConfigError) as error:
            raise InvalidRequest(str(error)) from error

    def predict_batch(self, batch: Batch, signature: str, outputs: Sequence[str] | None) -> Arrays:
        """Score a batch that ``read`` returned."""
        return self._score(batch, self._check_outputs(signature, outputs))

    def replay_warm_up(self, folder: Path) -> int:
        """Replay the warm-up requests of an export; return their number."""
        count = 0
        for log in read_tfrecords(folder / WARMUP) if self._state.manifest.warmup else ():
            request = decode_warmup(log)
            yield_gil()
            kind: Any = RECORD_INPUTS[request.input]
            self.predict(list(request.records), kind, request.signature, request.output_filter or None)
            yield_gil()
            count += 1
        return count

    def _check_outputs(self, name: str, outputs: Sequence[str] | None) -> list[str]:
        """Return the names of the outputs to compute."""
        self._state.check_open()
        manifest = self._state.manifest
        signature = find_signature(self._state, name)
        if signature.kind != "score" or self._scorer is None:
            scoring = [each for each, other in manifest.signatures.items() if other.kind == "score"]
            remedy = ", ".join(scoring) or "the entry of the model"
            raise InvalidRequest(f"signature {name!r} of {manifest.name!r} takes no records; use {remedy}")
        for output in outputs or ():
            if output not in signature.outputs:
                known = ", ".join(signature.outputs)
                raise InvalidRequest(
                    f"signature {name!r} of {manifest.name!r} has no output {output!r}; it has {known}"
                )
        return list(signature.outputs if outputs is None else outputs)

    def _parse(self, records: Records, kind: RecordKind) -> Batch:
        assert self._parsers is not None  # ``_check_outputs`` has checked it
        return self._parsers.parse(records, kind)

    def _score(self, batch: Batch, outputs: Sequence[str]) -> Arrays:
        assert self._scorer is not None  # ``_check_outputs`` has checked it
        if batch.size:
            return self._scorer.score(batch, outputs)
        self._state.check_open()
        return {name: self._make_empty(name) for name in outputs}

    def _make_empty(self, output: str) -> NDArray[Any]:
        signatures = self._state.manifest.signatures.values()
        info = next(each.outputs[output] for each in signatures if output in each.outputs)
        return np.empty((0, *(max(0, size) for size in info.shape[1:])), info.dtype)


def find_signature(state: CutState, name: str) -> Signature:
    """Return a signature by name.

    Raises:
        InvalidRequest: The model has no signature of that name.
    """
    manifest = state.manifest
    signature = manifest.signatures.get(name)
    if signature is None:
        known = ", ".join(manifest.signatures)
        raise InvalidRequest(f"model {manifest.name!r} has no signature {name!r}; it has {known}")
    return signature
