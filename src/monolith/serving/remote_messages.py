"""Requests and answers of TensorFlow Serving's Predict as one server sends them to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith._proto.messages import parse_bytes
from monolith.core.errors import InvalidRequest, RecordCorrupt, ShardUnavailable
from monolith.serving import messages
from monolith.serving.cut_history import CutKey, OtherCut
from monolith.serving.tensors import data_type, read_tensor

__all__ = ["metadata_request", "predict_request", "read_input_names", "read_outputs"]

_CUT, _CUTS = "cut", "cuts"


def predict_request(
    model: str,
    version: int,
    signature: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    cut: CutKey | None = None,
) -> bytes:
    """Return the bytes of a request, as of a cut if one is given; numbers go as they lie in memory."""
    if cut is not None:  # the answer says also which cuts there are
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
    """Return the named outputs of an answer.

    Args:
        payload: The answer.
        names: What is wanted of it.
        part: Who gave it.
        cut: What was asked for; who follows nothing says nothing of it.

    Raises:
        ShardUnavailable: It is no answer, or lacks one of them: something else listens there.
        OtherCut: It says that there are other cuts only.
    """
    try:
        found = parse_bytes(messages.PredictResponse, payload, "the answer").outputs
        if cut is not None and _CUTS in found:
            held = [(number, time_us) for number, time_us in read_tensor(found[_CUTS], _CUTS).reshape(-1, 2).tolist()]
            if cut not in held:
                numbers = ", ".join(str(number) for number, _ in held)
                raise OtherCut(
                    f"{part} shows cut {numbers}, not {cut[0]}; see whether all parts follow the same", [part], held
                )
        if absent := [name for name in names if name not in found]:
            raise InvalidRequest(f"it has no output {absent[0]!r}")
        return {name: read_tensor(found[name], name) for name in names}
    except (RecordCorrupt, InvalidRequest) as error:
        raise ShardUnavailable(f"{part} gave an answer that cannot be used ({error}); see what serves it") from error


def metadata_request(model: str, version: int) -> bytes:
    """Return the bytes of a request for a version's signatures."""
    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = model
    request.model_spec.version.value = version
    return request.SerializeToString()


def read_input_names(payload: bytes, signature: str, part: str) -> list[str]:
    """Return the names of a signature's inputs.

    Raises:
        ShardUnavailable: There is no such signature.
    """
    try:
        packed = parse_bytes(messages.GetModelMetadataResponse, payload, "the answer").metadata["signature_def"].value
        found = parse_bytes(messages.SignatureDefMap, packed, "the answer").signature_def
    except RecordCorrupt as error:
        raise ShardUnavailable(f"{part} gave an answer that cannot be used ({error}); see what serves it") from error
    if signature not in found:
        raise ShardUnavailable(f"{part} has no signature {signature!r}; see what serves it")
    return sorted(found[signature].inputs)
