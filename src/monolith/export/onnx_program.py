"""Convert a traced program to an ONNX file with a separate weights file. Only this module imports onnx.

The conversion removes paths and stack traces of the exporting machine, unused inputs, and operators that onnxruntime
cannot fold.
"""

from __future__ import annotations

import functools
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.artifacts.export_manifest import TensorInfo
from monolith.artifacts.export_tensors import SCALE_SUFFIX, is_quantizable, quantized, restored, write_tensors
from monolith.core.durable_files import write_synced
from monolith.core.errors import ConfigError

__all__ = ["OnnxProgram", "convert", "read_operators_once"]

_PREFIX = "model."
_DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64", 3: "int8", 8: "string"}


def convert(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], weights: Sequence[str]
) -> OnnxProgram:
    """Convert a traced program to ONNX.

    Args:
        program: The traced program.
        inputs: Names of its inputs, in order.
        outputs: Names of its outputs, in order.
        weights: Names of the model's weights.

    Raises:
        ConfigError: onnx is not installed, or cannot express an operator; or a weight has the name of an input or
            output, or an output that of an input.
    """
    _onnx()
    read_operators_once()
    if twice := sorted({*inputs, *outputs} & set(weights)):
        raise ConfigError(
            f"name of a weight is {twice[0]!r}, which is also an input or output of the dense part; rename the weight "
            "or the head"
        )
    if twice := sorted({*inputs} & {*outputs}):
        raise ConfigError(
            f"name of an output is {twice[0]!r}, which is also an input of the dense part; rename the head or the "
            "output"
        )
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        text = " ".join(str(error).split())
        raise ConfigError(
            f"the dense part cannot be converted to ONNX: {text[:600]}; use operators of ONNX, or export for servers "
            "with torch: program='torch' (--program torch)"
        ) from error
    assert made is not None
    proto = made.model_proto
    _strip_origins(proto)
    _name_values(proto.graph, inputs, outputs, weights)
    _resolve_casts(proto)
    _measure_real_inputs(proto.graph)
    _multiply_squares(proto.graph)
    _drop_unused(proto.graph)
    _name_batch(proto.graph)
    return OnnxProgram(proto, weights)


def read_operators_once() -> None:
    """Make torch read the operators of onnxscript once per process. Each export reads them, for a third of its time."""
    try:
        name = importlib.import_module("torch.onnx._internal._lazy_import").onnxscript_apis._name
        apis = importlib.import_module(name)
        read = apis.get_torchlib_ops
    except (AttributeError, ImportError):  # another release of torch
        return
    if not hasattr(read, "cache_info"):
        setattr(apis, "get_torchlib_ops", functools.cache(read))  # noqa: B010


class OnnxProgram:
    """A dense program in memory.

    Args:
        proto: The ONNX model.
        weights: Names of the initializers that are weights of the model.
    """

    def __init__(self, proto: Any, weights: Sequence[str]) -> None:
        onnx = _onnx()
        self._proto = proto
        own = set(weights)
        self.weights: dict[str, NDArray[Any]] = {
            each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer if each.name in own
        }
        """Weights of the model by their names in a checkpoint."""
        self.quantized: tuple[str, ...] = ()

    @property
    def inputs(self) -> dict[str, TensorInfo]:
        """Inputs that the program reads."""
        return {each.name: _info(each) for each in self._proto.graph.input}

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        """Outputs of the program."""
        return {each.name: _info(each) for each in self._proto.graph.output}

    def with_bits(self, bits: int) -> tuple[OnnxProgram, float]:
        """Return the program with quantized matrices, and the largest error of a weight."""
        furthest = 0.0
        stored: dict[str, NDArray[Any]] = {}
        chosen = [name for name, array in self.weights.items() if is_quantizable(array)]
        for name, array in self.weights.items():
            if name not in chosen:
                stored[name] = array
                continue
            parts = quantized(name, array, bits)
            stored |= parts
            furthest = max(furthest, float(np.abs(restored(name, parts) - array).max()))
        proto = type(self._proto)()
        proto.CopyFrom(self._proto)
        _decode_in_graph(proto.graph, chosen, stored, bits)
        made = OnnxProgram(proto, list(stored))
        made.quantized = tuple(chosen)
        return made, furthest

    def write(self, program: Path, weights: Path) -> None:
        """Write and sync the program and its weights in one folder."""
        places = write_tensors(weights, self.weights)
        onnx = _onnx()
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        for tensor in proto.graph.initializer:
            if tensor.name not in places:
                continue
            place = places[tensor.name]
            for content in ("raw_data", "float_data", "int64_data", "int32_data"):
                tensor.ClearField(content)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", weights.name), ("offset", place.offset), ("length", place.bytes)):
                tensor.external_data.add(key=key, value=str(value))
        write_synced(program, proto.SerializeToString(deterministic=True))

    def to_bytes(self) -> bytes:
        """Return the encoded program with its weights."""
        _onnx().checker.check_model(self._proto)
        content: bytes = self._proto.SerializeToString(deterministic=True)
        return content


# --- clean-up ---------------------------------------------------------------------------------------------------------


def _strip_origins(proto: Any) -> None:
    """Remove stack traces, paths and docstrings of the exporting machine."""
    proto.ClearField("doc_string")
    del proto.metadata_props[:]
    graphs = [proto.graph, *proto.functions]
    for graph in graphs:
        graph.ClearField("doc_string")
        del graph.metadata_props[:]
        for node in graph.node:
            node.ClearField("doc_string")
            del node.metadata_props[:]
        for group in ("input", "output", "value_info", "initializer"):
            for each in getattr(graph, group, ()):
                if hasattr(each, "metadata_props"):
                    del each.metadata_props[:]


def _name_values(graph: Any, inputs: Sequence[str], outputs: Sequence[str], weights: Sequence[str]) -> None:
    """Name the inputs, outputs and weights of a graph, and rename other values that have one of these names.

    torch names a value by its operator, such as ``mul``, and a head or a weight may have the same name. An output gets
    an extra node if it is an input, a weight, or the tensor of another output.
    """
    made = {name for node in graph.node for name in node.output}
    names = dict(zip((each.name for each in graph.input), inputs, strict=True))
    names |= {_PREFIX + name: name for name in weights}
    copies = []
    for each, name in zip(graph.output, outputs, strict=True):
        if each.name in made and each.name not in names:
            names[each.name] = name
        else:
            copies.append((each.name, name))
    taken = {*inputs, *outputs, *weights}
    present = set(_names_in(graph))
    for name in sorted(taken & present - names.keys()):
        number = 0
        while (free := f"{name}_{number}") in taken | present:
            number += 1
        names[name] = free
        taken.add(free)
    _rename(graph, names)
    for each, name in zip(graph.output, outputs, strict=True):
        each.name = name
    make_node = _onnx().helper.make_node
    graph.node.extend(make_node("Identity", [names.get(source, source)], [name]) for source, name in copies)


def _graphs_inside(node: Any) -> Iterator[Any]:
    """Yield the bodies of a loop or a branch."""
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _names_in(graph: Any) -> Iterator[str]:
    """Yield the names of all values of a graph and of the graphs in it."""
    for each in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        yield each.name
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in _graphs_inside(node):
            yield from _names_in(inner)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values in a graph and in the graphs in it."""
    for each in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        each.name = names.get(each.name, each.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in _graphs_inside(node):
            _rename(inner, names)


def _rename_reads(graph: Any, names: Mapping[str, str]) -> None:
    """Make the nodes of a graph, and of the graphs in it, read other values."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for inner in _graphs_inside(node):
            _rename_reads(inner, names)


def _resolve_casts(proto: Any) -> None:
    """Replace CastLike by Cast: onnxruntime cannot fold CastLike, and would cast weights in every call."""
    onnx = _onnx()
    if not any(node.op_type == "CastLike" for node in proto.graph.node):
        return
    inferred = onnx.shape_inference.infer_shapes(proto)
    types = {each.name: each.data_type for each in proto.graph.initializer}
    for group in (inferred.graph.input, inferred.graph.output, inferred.graph.value_info):
        types |= {each.name: each.type.tensor_type.elem_type for each in group}
    for node in proto.graph.node:
        if node.op_type == "CastLike" and types.get(node.input[1], 0):
            wanted = types[node.input[1]]
            node.op_type = "Cast"
            del node.input[1:]
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("to", wanted))


def _measure_real_inputs(graph: Any) -> None:
    """Read the batch size from an input that the model uses, instead of from a column."""
    real = next((each.name for each in graph.input if "/" in each.name), None)
    columns = {each.name for each in graph.input if "/" not in each.name}
    for node in graph.node:
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        is_size = node.op_type == "Shape" and bounds.get("start", 0) == 0 and bounds.get("end") == 1
        if real is not None and is_size and node.input[0] in columns:
            node.input[0] = real


def _multiply_squares(graph: Any) -> None:
    """Replace Pow with exponent 2 by Mul, which is faster in onnxruntime."""
    to_array = _onnx().numpy_helper.to_array
    constants = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
    for node in graph.node:
        exponent = constants.get(node.input[1]) if node.op_type == "Pow" else None
        if exponent is not None and to_array(exponent).tolist() == 2:
            node.op_type = "Mul"
            node.input[1] = node.input[0]


def _drop_unused(graph: Any) -> None:
    """Remove nodes without effect on outputs, then unused inputs and initializers."""
    needed = {each.name for each in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(name for name in node.input if name)
            needed.update(_read_inside(node))
    kept.reverse()
    _replace(graph.node, kept)
    _replace(graph.input, [each for each in graph.input if each.name in needed])
    _replace(graph.initializer, [each for each in graph.initializer if each.name in needed])
    produced = {name for node in graph.node for name in node.output}
    _replace(graph.value_info, [each for each in graph.value_info if each.name in produced])


def _read_inside(node: Any) -> Iterator[str]:
    """Yield the outer names that the bodies of loops and branches read."""
    for graph in _graphs_inside(node):
        for inner in graph.node:
            yield from inner.input
            yield from _read_inside(inner)


def _replace(field: Any, items: Sequence[Any]) -> None:
    copies = [type(each)() for each in items]
    for copy, each in zip(copies, items, strict=True):
        copy.CopyFrom(each)
    del field[:]
    field.extend(copies)


def _name_batch(graph: Any) -> None:
    """Name the first free dimension of inputs ``batch``, and all dimensions of the same size."""
    free = {
        each.type.tensor_type.shape.dim[0].dim_param
        for each in graph.input
        if each.type.tensor_type.shape.dim and each.type.tensor_type.shape.dim[0].dim_param
    }
    for each in (*graph.input, *graph.output, *graph.value_info):
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_param in free:
                dim.dim_param = "batch"


def _decode_in_graph(graph: Any, chosen: Sequence[str], stored: Mapping[str, NDArray[Any]], bits: int) -> None:
    """Add a node that decodes each quantized matrix to floats, and connect its readers."""
    onnx = _onnx()
    decoders, tensors = [], []
    for tensor in graph.initializer:
        if tensor.name not in chosen:
            tensors.append(tensor)
            continue
        name = tensor.name
        decoded = f"{name}.decoded"
        tensors.append(onnx.numpy_helper.from_array(stored[name], name))
        if bits == 8:
            scale = name + SCALE_SUFFIX
            tensors.append(onnx.numpy_helper.from_array(stored[scale], scale))
            axis = stored[name].ndim - 1
            decoders.append(onnx.helper.make_node("DequantizeLinear", [name, scale], [decoded], axis=axis))
        else:
            decoders.append(onnx.helper.make_node("Cast", [name], [decoded], to=onnx.TensorProto.FLOAT))
    _replace(graph.initializer, tensors)
    _rename_reads(graph, {name: f"{name}.decoded" for name in chosen})
    _replace(graph.node, [*decoders, *graph.node])
    _replace(graph.value_info, [each for each in graph.value_info if each.name not in chosen])


def _info(value: Any) -> TensorInfo:
    tensor = value.type.tensor_type
    shape = tuple(-1 if dim.dim_param or not dim.HasField("dim_value") else dim.dim_value for dim in tensor.shape.dim)
    return TensorInfo(dtype=_DTYPES[tensor.elem_type], shape=shape)


# --- third parties ----------------------------------------------------------------------------------------------------


def _onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
        import onnx.shape_inference
        import onnxscript  # noqa: F401  (required by torch's exporter)
    except ImportError as error:
        raise ConfigError(
            f"onnx or onnxscript is missing ({error}), expected both for an export: pip install 'monolith[export]'"
        ) from error
    return onnx


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and logs of torch's exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
