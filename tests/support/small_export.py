"""A small export with a linear program, for tests of serving: scores can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from monolith.artifacts.checkpoint_manifest import describe_files
from monolith.artifacts.export_manifest import (
    PROGRAM,
    TABLES,
    WARMUP,
    WEIGHTS,
    DenseProgram,
    ExportManifest,
    ServedTable,
    TensorInfo,
    write_export_manifest,
)
from monolith.artifacts.export_warmup import WarmupRequest, encode_warmup
from monolith.core import fid
from monolith.data.records import messages
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.embedding import Fp32, MultiTable
from monolith.export.onnx_program import OnnxProgram
from monolith.export.signatures import score_signatures, table_signatures
from monolith.features import Declaration

__all__ = ["WEIGHT", "declared", "example", "fid_of", "make_export", "program"]

WEIGHT = np.array([[1.0], [10.0]], np.float32)


def declared() -> Declaration:
    """Two features whose rows of one number are put side by side, and a price."""
    declaration = Declaration()
    for name, slot in (("user", 1), ("item", 2)):
        declaration.add_feature(name, slot=slot)
    declaration.add_layout(["user", "item"], "vec", 1, out="concat", compressor=Fp32())
    declaration.add_dense("price", width=1)
    declaration.freeze()
    return declaration


def program(declaration: Declaration) -> OnnxProgram:
    """score = (user, item) @ w + price; twice = 2 score."""
    (tensor,) = declaration.tensors()
    layout = f"layout/{tensor.name}"
    nodes = [
        helper.make_node("MatMul", [layout, "w"], ["product"]),
        helper.make_node("Add", ["product", "dense/price"], ["column"]),
        helper.make_node("Squeeze", ["column", "axis"], ["score"]),
        helper.make_node("Add", ["score", "score"], ["twice"]),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [
            helper.make_tensor_value_info(layout, TensorProto.FLOAT, ["batch", 2]),
            helper.make_tensor_value_info("dense/price", TensorProto.FLOAT, ["batch", 1]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("score", "twice")],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.array([1], np.int64), "axis")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(proto)
    return OnnxProgram(proto, ["w"])


def fid_of(slot: int, value: int) -> int:
    return fid.make_v2(slot, value)


def make_export(folder: Path, **changes: Any) -> Path:
    declaration = declared()
    dense = program(declaration)
    (folder / PROGRAM).parent.mkdir(parents=True)
    dense.write(folder / PROGRAM, folder / WEIGHTS)
    tables = MultiTable(declaration.table_specs())
    tables["user"].assign([fid_of(1, 7), fid_of(1, 8)], [[1], [2]])
    tables["item"].assign([fid_of(2, 7), fid_of(2, 9)], [[3], [4]])
    served = tables.to_serving()
    served.save_images(folder / TABLES)
    described = tuple(
        ServedTable(name=name, dim=1, rows=len(served[name]), compressors=((1, "fp32"),)) for name in served
    )
    record = messages.Example(named_feature=[]).SerializeToString()
    (folder / WARMUP).parent.mkdir()
    with TfRecordWriter(folder / WARMUP) as writer:
        for signature in ("serving_default", "twice"):
            writer.write(
                encode_warmup(WarmupRequest(model="m", signature=signature, input="examples", records=(record,) * 2))
            )
    manifest = ExportManifest(
        **{
            "name": "prices",
            "version": 12,
            "sub_model": "standalone",
            "global_step": 5,
            "exported_at_s": 1.0,
            "package_version": "0",
            "signatures": {**score_signatures(["score"], dense.outputs), **table_signatures(described)},
            "declaration": json.loads(declaration.to_json()),
            "heads": ("score",),
            "tables": described,
            "has_tables": True,
            "dense": DenseProgram(
                inputs=dense.inputs,
                outputs=dense.outputs,
                weights={"w": TensorInfo(dtype="float32", shape=(2, 1))},
            ),
            "files": describe_files(folder),
            **changes,
        }
    )
    write_export_manifest(folder, manifest)
    return folder


def example(user: list[int], item: list[int], price: float) -> Any:
    made = messages.Example()
    for name, slot, values in (("user", 1, user), ("item", 2, item)):
        made.named_feature.add(name=name).feature.fid_v2_list.value.extend(fid_of(slot, value) for value in values)
    made.named_feature.add(name="price").feature.float_list.value.append(price)
    return made
