"""Encode and parse TensorFlow Serving's Predict messages between an entry and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith._proto.messages import parse_bytes
from monolith.core.errors import InvalidRequest, RecordCorrupt, ShardUnavailable
from monolith.serving.api import messages
from monolith.serving.api.tensors import data_type, read_tensor
from monolith.serving.servable.cut_history import CutKey, OtherCut

__all__ = ["metadata_request", "predict_request", "read_input_names", "read_outputs"]

_CUT, _CUTS = "cut", "cuts"
_LISTED_CUTS = 4  # in an error


def predict_request(
    model: str,
    version: int,
    signature: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    cut: CutKey | None = None,
) -> bytes:
    """Return an encoded request, optionally as of a cut. Values travel as ``tensor_content``."""
    if cut is not None:  # the response then lists the available cuts
        inputs, outputs = {**inputs, _CUT: np.array(cut, np.int64)}, ()
    request = messages.PredictRequest(output_filter=outputs)
    request.model_spec.name = model
    request.model_spec.version.value = version
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = data_type(array.dtype)  # type: ignore[assignment]
        for size in array.shape:
            tensor.tensor_shape.dim.add().size = size
        tensor.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return request.SerializeToString()


def read_outputs(payload: bytes, names: Sequence[str], part: str, cut: CutKey | None = None) -> dict[str, NDArray[Any]]:
    """Return the named outputs of a response.

    Args:
        payload: The response.
        names: Names of the outputs.
        part: Name of the part that answered.
        cut: The requested cut. A part that does not follow returns no list of cuts.

    Raises:
        ShardUnavailable: The response is invalid, or lacks an output. Another service may listen at the address.
        OtherCut: The part holds other cuts only.
    """
    try:
        found = parse_bytes(messages.PredictResponse, payload, "the response").outputs
        if cut is not None and _CUTS in found:
            held = [(number, time_us) for number, time_us in read_tensor(found[_CUTS], _CUTS).reshape(-1, 2).tolist()]
            if cut not in held:
                numbers = ", ".join(str(number) for number, _ in held[:_LISTED_CUTS])
                if len(held) > _LISTED_CUTS:
                    numbers += f" and {len(held) - _LISTED_CUTS} earlier ones"
                raise OtherCut(
                    f"{part} holds cuts {numbers}, expected {cut[0]}; check that all parts follow the same publisher",
                    [part],
                    held,
                )
        if absent := [name for name in names if name not in found]:
            raise InvalidRequest(f"output {absent[0]!r} is missing")
        return {name: read_tensor(found[name], name) for name in names}
    except (RecordCorrupt, InvalidRequest) as error:
        raise ShardUnavailable(
            f"{part} sent an invalid response ({error}); check the service at its address"
        ) from error


def metadata_request(model: str, version: int) -> bytes:
    """Return an encoded request for the signatures of a version."""
    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = model
    request.model_spec.version.value = version
    return request.SerializeToString()


def read_input_names(payload: bytes, signature: str, part: str) -> list[str]:
    """Return the input names of a signature.

    Raises:
        ShardUnavailable: The signature does not exist, or the response is invalid.
    """
    try:
        packed = parse_bytes(messages.GetModelMetadataResponse, payload, "the response").metadata["signature_def"].value
        found = parse_bytes(messages.SignatureDefMap, packed, "the response").signature_def
    except RecordCorrupt as error:
        raise ShardUnavailable(
            f"{part} sent an invalid response ({error}); check the service at its address"
        ) from error
    if signature not in found:
        raise ShardUnavailable(f"{part} has no signature {signature!r}; check the service at its address")
    return sorted(found[signature].inputs)
