"""``RemoteDense``: runs the dense part of an entry on the servers of its ``dense_0`` sub-model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from monolith.artifacts.export_manifest import ExportManifest
from monolith.serving.remote.addresses import Place
from monolith.serving.remote.calls import RemoteCall, RemoteCalls, Verb
from monolith.serving.remote.messages import metadata_request, predict_request, read_input_names, read_outputs
from monolith.serving.servable.cut_history import CutKey

__all__ = ["RemoteDense"]

_PART, _SIGNATURE = "dense_0", "gpu_remote_call"


class RemoteDense:
    """``DenseRunner`` of one version of an entry. Call ``check`` first.

    Args:
        manifest: Manifest of the entry.
        calls: Remote calls.
    """

    def __init__(self, manifest: ExportManifest, calls: RemoteCalls) -> None:
        self._calls = calls
        self._model = manifest.name
        self._version = manifest.version
        self._inputs: Sequence[str] = ()

    def check(self) -> None:
        """Check that a server has the version, and read its input names.

        Raises:
            ShardUnavailable: No server has the version.
            RpcTimeout: No server answers in time.
        """
        place = self._calls.place_of(self._model, _PART)
        answer = self._answer(place, "GetModelMetadata", metadata_request(place.name, self._version), "its signatures")
        self._inputs = read_input_names(answer, _SIGNATURE, _PART)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], cut: CutKey | None = None
    ) -> dict[str, NDArray[Any]]:
        """Compute the named outputs with the weights of a cut; None takes the newest.

        Raises:
            OtherCut: The server holds weights of other cuts only.
            ShardUnavailable: No replica answered.
            RpcTimeout: The call timed out.
        """
        wanted = {name: inputs[name] for name in self._inputs}
        place = self._calls.place_of(self._model, _PART)
        payload = predict_request(place.name, self._version, _SIGNATURE, wanted, outputs, cut)
        answer = self._answer(place, "Predict", payload, f"outputs {', '.join(outputs)}")
        return read_outputs(answer, outputs, _PART, cut)

    def _answer(self, place: Place, verb: Verb, payload: bytes, what: str) -> bytes:
        call = RemoteCall(_PART, f"{what} of model {self._model!r} version {self._version}", place, verb, payload)
        self._calls.run_all([call])
        if call.answer is None:
            assert call.error is not None
            raise call.error
        return call.answer
