from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from monolith.artifacts.export_tensors import is_quantizable, quantized, read_tensors, restored, write_tensors
from monolith.core.errors import ConfigError, ManifestInvalid

MATRICES = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6),
    elements=st.floats(-1000, 1000, width=32),
)


def test_arrays_are_read_back_and_lie_at_their_offsets(tmp_path: Path) -> None:
    given_arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([True, False]),
        "c": np.array(7, np.int64),
        "d": np.empty((0, 4), np.float16),
    }
    places = write_tensors(tmp_path / "w", given_arrays)
    read = read_tensors(tmp_path / "w")
    content = (tmp_path / "w").read_bytes()
    for name, array in given_arrays.items():
        assert read[name].dtype == array.dtype
        assert read[name].tolist() == array.tolist()
        place = places[name]
        assert content[place.offset : place.offset + place.bytes] == array.tobytes()


def test_any_reader_of_safetensors_can_open_the_file(tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    write_tensors(tmp_path / "w", {"a": np.ones((2, 2), np.float32), "b": np.arange(3, dtype=np.int8)})
    read = numpy_reader.load_file(tmp_path / "w")
    assert read["a"].tolist() == [[1, 1], [1, 1]]
    assert read["b"].tolist() == [0, 1, 2]


@given(content=st.binary(min_size=1, max_size=200))
def test_bytes_of_another_format_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "no-weights"
    path.write_bytes(b"\x20" + content)
    with pytest.raises(ManifestInvalid, match="no-weights"):
        read_tensors(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "w", {"a": np.ones(100, np.float32)})
    content = (tmp_path / "w").read_bytes()
    for size in (0, 7, 20, len(content) - 1):
        (tmp_path / "w").write_bytes(content[:size])
        with pytest.raises(ManifestInvalid):
            read_tensors(tmp_path / "w")


@given(matrix=MATRICES)
def test_eight_bits_are_off_by_at_most_half_a_step_of_each_column(matrix: np.ndarray) -> None:
    stored = quantized("w", matrix, 8)
    assert stored["w"].dtype == np.int8
    step = np.abs(matrix).max(axis=tuple(range(matrix.ndim - 1))) / 127
    assert np.all(np.abs(restored("w", stored) - matrix) <= step * 0.5001 + 1e-30)


@given(matrix=MATRICES)
def test_sixteen_bits_are_half_precision(matrix: np.ndarray) -> None:
    stored = quantized("w", matrix, 16)
    assert stored["w"].dtype == np.float16
    assert np.all(np.abs(restored("w", stored) - matrix) <= np.abs(matrix) * 2.0**-11 + 6e-8)


def test_a_weight_that_does_not_fit_fewer_bits_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'tower\.w' has values that are not finite"):
        quantized("tower.w", np.full((4, 4), np.nan, np.float32), 8)
    with pytest.raises(ConfigError, match="half precision"):
        quantized("tower.w", np.full((4, 4), 1e6, np.float32), 16)


def test_only_matrices_of_floats_are_worth_fewer_bits() -> None:
    assert is_quantizable(np.ones((8, 8), np.float32))
    assert not is_quantizable(np.ones(64, np.float32))
    assert not is_quantizable(np.ones((8, 8), np.int64))
    assert not is_quantizable(np.ones((2, 2), np.float32))
