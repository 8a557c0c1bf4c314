"""Tensors and arrays: every type, both of TensorFlow's ways to write values, and refusals."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import InvalidRequest
from monolith.serving.api.messages import PredictResponse, TensorProto
from monolith.serving.api.tensors import encode_outputs, make_tensor, read_tensor, varint

NUMBERS = ["float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@given(st.data(), st.sampled_from([*NUMBERS, "bool"]))
def test_an_array_survives_the_way_there_and_back(data: st.DataObject, dtype: str) -> None:
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    found = read_tensor(make_tensor(array), "x")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_byte_strings_survive_too_with_zeros_at_their_end(values: list[bytes]) -> None:
    array = np.empty(len(values), object)
    array[:] = values
    assert read_tensor(make_tensor(array), "x").tolist() == values
    content = b"".join(varint(len(value)) for value in values) + b"".join(values)
    tensor = TensorProto(dtype=7, tensor_content=content)
    tensor.tensor_shape.dim.add(size=len(values))
    assert read_tensor(tensor, "x").tolist() == values


@pytest.mark.parametrize("dtype", NUMBERS)
def test_values_may_come_as_the_bytes_of_the_array(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = make_tensor(array)
    for field in ("float_val", "double_val", "int_val", "int64_val", "half_val", "uint32_val", "uint64_val"):
        tensor.ClearField(field)  # type: ignore[arg-type]
    tensor.tensor_content = array.tobytes()
    np.testing.assert_array_equal(read_tensor(tensor, "x"), array)


def test_the_last_value_stands_for_all_that_follow() -> None:
    tensor = TensorProto(dtype=1, float_val=[1.0, 2.0])
    tensor.tensor_shape.dim.add(size=4)
    assert read_tensor(tensor, "x").tolist() == [1.0, 2.0, 2.0, 2.0]


def tensor(dtype: int, shape: list[int], **values: object) -> TensorProto:
    made = TensorProto(dtype=dtype, **values)  # type: ignore[arg-type]
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


REFUSED = [
    (tensor(0, [1]), "data type 0"),
    (tensor(8, [1]), "data type 8"),
    (tensor(99, [1]), "data type 99"),
    (tensor(1, [-1], float_val=[1.0]), "sizes from 0"),
    (tensor(1, [1] * 40, float_val=[1.0]), "at most 32"),
    (tensor(1, [2], float_val=[1.0, 2.0, 3.0]), "3 values, expected"),
    (tensor(1, [1 << 40], float_val=[1.0]), "expected all"),
    (tensor(1, [1 << 62, 1 << 62], float_val=[1.0]), "expected all"),
    (tensor(1, [0, 1 << 62]), "expected a product"),
    (tensor(7, [1 << 40, 0, 1 << 40]), "expected a product"),
    (tensor(1, [2], tensor_content=b"1234567"), "expected 8"),
    (tensor(4, [1], int_val=[256]), "expected uint8"),
    (tensor(6, [1], int_val=[-129]), "expected int8"),
    (tensor(7, [2], string_val=[b"a"]), "1 strings, expected"),
    (tensor(7, [3]), "0 strings, expected"),
    (tensor(7, [2], tensor_content=b"\x05\x05ab"), "expected 2 strings"),
    (tensor(7, [1], tensor_content=b"\xff\xff\xff\xff\xff\xff"), "expected 1 strings"),
    (tensor(7, [1 << 40], tensor_content=b"\x01a"), "3 bytes|2 bytes"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_an_invalid_tensor_is_refused_with_the_name_of_the_input(given: TensorProto, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'x'.*{text}"):
        read_tensor(given, "x")
    if text == "sizes from 0":
        given.tensor_shape.unknown_rank = True
        with pytest.raises(InvalidRequest, match="unknown rank"):
            read_tensor(given, "x")


def test_an_answer_written_by_hand_is_read_by_protobuf() -> None:
    outputs = {
        "score": np.array([[1.5], [-2.0]], np.float32),
        "count": np.array([-3, 1 << 40], np.int64),
        "none": np.zeros((0, 2), np.float32),
        "scalar": np.array(7, np.int32),
        "name": np.array(["ä", b"\xff"], object),
    }
    found = PredictResponse.FromString(encode_outputs(outputs, b"\x0a\x01m"))
    assert found.model_spec.name == "m"
    assert list(found.outputs["score"].float_val) == [1.5, -2.0]  # where clients of old look
    for name, array in outputs.items():
        if name != "name":
            np.testing.assert_array_equal(read_tensor(found.outputs[name], name), array)
    assert read_tensor(found.outputs["name"], "name").tolist() == ["ä".encode(), b"\xff"]
    with pytest.raises(InvalidRequest, match="complex64"):
        make_tensor(np.zeros(1, np.complex64))
