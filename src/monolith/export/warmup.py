"""Write the warm-up requests of an export: a copy of recorded requests, or generated ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from monolith.artifacts.export_manifest import RECORD_INPUTS
from monolith.artifacts.export_warmup import WarmupRequest, decode_warmup, encode_warmup
from monolith.artifacts.file_copy import copy_file
from monolith.core import fid
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.messages import Example
from monolith.data.records.tfrecord import TfRecordWriter, read_tfrecords
from monolith.features import Declaration

__all__ = ["copy_warmup", "write_warmup"]

_REQUESTS = 15
_ROWS = 64
_SHARE_OF_MISSING = 0.5
_MOST_IDS = 4


def copy_warmup(source: Path, target: Path, signatures: Sequence[str]) -> None:
    """Check and copy recorded requests.

    Raises:
        ConfigError: The file does not exist, or a request does not fit the model.
        RecordCorrupt: A record is invalid.
    """
    if not source.is_file():
        raise ConfigError(f"warm-up file is '{source}', expected an existing file; omit it to generate requests")
    for number, record in enumerate(read_tfrecords(source)):
        try:
            request = decode_warmup(record)
        except RecordCorrupt as error:
            raise RecordCorrupt(f"'{source}', record {number}: {error}") from error
        if request.signature not in signatures or request.input not in RECORD_INPUTS:
            raise ConfigError(
                f"record {number} of '{source}' has signature {request.signature!r} and input {request.input!r}, "
                f"expected {', '.join(signatures)} and {', '.join(RECORD_INPUTS)}"
            )
    copy_file(str(source), str(target))


def write_warmup(path: Path, declaration: Declaration, signatures: Sequence[str], model: str) -> None:
    """Write generated requests with random ids of every feature's slot. Deterministic."""
    random = np.random.default_rng(0)
    with TfRecordWriter(path) as writer:
        for number in range(_REQUESTS):
            records = tuple(_example(declaration, random) for _ in range(_ROWS))
            signature = signatures[number % len(signatures)]
            request = WarmupRequest(model=model, signature=signature, input="examples", records=records)
            writer.write(encode_warmup(request))


def _example(declaration: Declaration, random: np.random.Generator) -> bytes:
    example = Example()
    for feature in declaration.inputs.values():
        if random.random() < _SHARE_OF_MISSING:
            continue
        named = example.named_feature.add(name=feature.column or feature.input)
        values = random.integers(0, 1 << 48, int(random.integers(1, _MOST_IDS + 1))).tolist()
        if feature.value_type == "integer":
            named.feature.int64_list.value.extend(values)
        elif feature.value_type == "text":
            named.feature.bytes_list.value.extend(str(value).encode() for value in values)
        elif feature.value_type == "bucket":
            named.feature.float_list.value.extend(values)
        else:
            named.feature.fid_v2_list.value.extend(fid.make_v2(feature.slot or 0, value) for value in values)
    for number in declaration.dense.values():
        named = example.named_feature.add(name=number.column or number.name)
        if number.dtype == "bytes":
            named.feature.bytes_list.value.extend([b""] * number.width)
        elif number.dtype == "int64":
            named.feature.int64_list.value.extend(random.integers(0, 1000, number.width).tolist())
        else:
            named.feature.float_list.value.extend(random.standard_normal(number.width).tolist())
    content: bytes = example.SerializeToString()
    return content
