"""Writes the first inputs of the fuzz targets into cpp/fuzz/corpus; the comment of each target tells its layout.

Every choice follows from a fixed seed, so a second run writes the same files. Inputs that a fuzzer found lie beside
them under other names (``found-...``), and stay.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from monolith.compat.entry_dump.entry_codec import encode_entry
from monolith.data.records.framing import Framing
from monolith.data.records.generate import RandomRows, random_batch, random_example, random_instance
from monolith.data.records.messages import (
    ChannelCache,
    Example,
    ExampleBatch,
    ExampleBatchRowMajor,
    FilterValues,
    Instance,
    LineId,
    TfExample,
)
from monolith.data.records.quantized import encode_quantized
from monolith.embedding.entry import Entry, SliceState
from monolith.serving.api import messages as serving

CORPUS = Path(__file__).parent.parent / "cpp" / "fuzz" / "corpus"
NAMES = ("a", "b", "slot_3", "fc_slot_9", "d", "q", "i", "t")
ROWS = RandomRows(
    sparse={"a": 7, "b": 3, "slot_3": 3, "fc_slot_9": 9},
    dense={"d": 2, "q": 6},
    shared=("b",),
    labels=2,
    actions=(1, 2, 3),
    drop_rate=0.2,
)
LISTS = {
    "fid_v1_list": lambda rng: rng.getrandbits(64),
    "fid_v2_list": lambda rng: 7 << 48 | rng.getrandbits(48),
    "float_list": lambda rng: rng.choice([0.0, 0.5, -1.5, 3e38]),
    "double_list": lambda rng: rng.choice([0.0, -2.25, 1e300]),
    "int64_list": lambda rng: rng.choice([0, 1, -1, 2**40]),
    "bytes_list": lambda rng: rng.choice([b"", b"a", b"ab", encode_quantized([0.5, 1, 2, 3, 4, 5])]),
}


def pieces(payloads: Iterable[bytes]) -> bytes:
    """Return payloads with their lengths, as the targets take records apart."""
    return b"".join(struct.pack("<H", len(payload)) + payload for payload in payloads)


def line_id(rng: random.Random) -> Any:
    """Return a LineId with every published field, each there by lot."""
    line = LineId()
    values = {
        "uid": rng.getrandbits(64),
        "req_time": 1_700_000_000,
        "item_id": rng.randrange(5),
        "chnid": rng.randrange(4),
        "sample_rate": 0.25,
        "device_type": "ab",
        "cid": "c",
        "user_id": "u-1",
        "is_draw": True,
        "rank": 3,
        "data_source_name": "feed",
    }
    for name, value in values.items():
        if rng.random() < 0.6:
            setattr(line, name, value)
    line.actions.extend(rng.choices([1, 2, 3, -1], k=rng.randrange(4)))
    line.pre_actions.extend(rng.choices([1, 2], k=rng.randrange(2)))
    line.special_strategies.extend(rng.choices([1, 2], k=rng.randrange(2)))
    return line


def fill(feature: Any, arm: str, rng: random.Random) -> None:
    """Fill one arm of an Example's feature."""
    base = arm.removesuffix("s") if arm.endswith("lists") else arm
    if arm.endswith("_value"):
        setattr(feature, arm, LISTS[arm.replace("_value", "_list")](rng))
    elif arm.endswith("lists"):
        for _ in range(2):
            getattr(feature, arm).list.add().value.extend(LISTS[base](rng) for _ in range(2))
    else:
        getattr(feature, arm).value.extend(LISTS[base](rng) for _ in range(rng.randrange(1, 4)))


ARMS = (*LISTS, *(f"{arm}s" for arm in LISTS), "int64_value", "float_value", "double_value", "bytes_value")


def examples(rng: random.Random) -> list[Any]:
    """Return Examples that have every arm, and reserved features."""
    made = [random_example(ROWS, seed=seed) for seed in range(3)]
    for first in range(0, len(ARMS), 4):
        example = Example(label=[1, 0.5], instance_weight=2, data_source_key=256)
        for name, arm in zip(rng.sample(NAMES, 4), ARMS[first : first + 4], strict=False):
            fill(example.named_feature.add(name=name).feature, arm, rng)
        example.line_id.CopyFrom(line_id(rng))
        made.append(example)
    reserved = Example()
    reserved.named_feature.add(name="__LABEL__").feature.float_list.value.extend([1, -3.4028234663852886e38])
    reserved.named_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(
        line_id(rng).SerializeToString(deterministic=True)
    )
    reserved.named_feature.add(name="instance_weight").feature.float_list.value.append(0)
    made.append(reserved)
    return made


def example_batches(rng: random.Random) -> list[Any]:
    """Return column-wise batches, with shared columns and reserved ones."""
    made = [random_batch(ROWS, size, seed=size) for size in (1, 3)]
    for first in range(0, len(ARMS), 4):
        batch = ExampleBatch(batch_size=2, data_source_key=512)
        for name, arm in zip(rng.sample(NAMES, 4), ARMS[first : first + 4], strict=False):
            column = batch.named_feature_list.add(name=name, type=rng.randrange(2))
            for _ in range(1 if column.type == 1 else 2):
                fill(column.feature.add(), arm, rng)
        for name, arm in (("__LABEL__", "float_list"), ("instance_weight", "float_value")):
            column = batch.named_feature_list.add(name=name, type=1)
            fill(column.feature.add(), arm, random.Random(2))
        lines = batch.named_feature_list.add(name="__LINE_ID__")
        for _ in range(2):
            lines.feature.add().bytes_list.value.append(line_id(rng).SerializeToString(deterministic=True))
        made.append(batch)
    return made


def row_major_batches(rng: random.Random) -> list[Any]:
    """Return row-wise batches with shared features."""
    made = []
    for first in range(0, len(ARMS), 4):
        batch = ExampleBatchRowMajor()
        for name, arm in zip(rng.sample(NAMES, 4), ARMS[first : first + 4], strict=False):
            fill(batch.shared_feature.add(name=name).feature, arm, rng)
        for seed in range(2):
            batch.example.add().CopyFrom(random_example(ROWS, seed=seed))
        made.append(batch)
    return made


def instances(rng: random.Random) -> list[Any]:
    """Return Instances with flat ids, named features and the plain lists."""
    made = [random_instance((3, 7, 9), (2, 2, 2), seed=1)]
    for seed in range(3):
        instance = random_instance((3, 700, 1023), (1, 2, 1), seed=seed)
        instance.label.extend([1, 0])
        instance.instance_weight = 0.5
        instance.line_id.CopyFrom(line_id(rng))
        for name, kind in zip(rng.sample(NAMES, 4), ("fid", "float_value", "int64_value", "bytes_value"), strict=True):
            values = {"fid": [7 << 48 | 5, 1], "bytes_value": [b"ab", b""]}.get(kind, [1, 2, 3][: 2 + seed % 2])
            getattr(instance.feature.add(name=name), kind).extend(values)
        instance.feature.add(name="a").fid_list.add().value.extend([1, 2])
        instance.feature.add(name="d").float_list.add().value.extend([0.5, 2])
        made.append(instance)
    plain = Instance(value=[1, 2], dense=[3], next_fid=[4])
    plain.data_source_key = 256
    made.append(plain)
    return made


def tf_examples(rng: random.Random) -> list[Any]:
    """Return tf.Examples with features, labels and LineId fields."""
    made = []
    for _ in range(4):
        example = TfExample()
        features = example.features.feature
        for name in rng.sample(NAMES, 4):
            kind = rng.choice(["float_list", "int64_list", "bytes_list"])
            getattr(features[name], kind).value.extend(LISTS[kind](rng) for _ in range(2))
        features["label"].float_list.value.extend([1, 0])
        features["__UID__"].int64_list.value.append(rng.getrandbits(60))
        features["__ACTIONS__"].int64_list.value.extend([1, 2])
        features["__SAMPLE_RATE__"].float_list.value.append(0.5)
        features["__DEVICE_TYPE__"].bytes_list.value.append(b"ab")
        made.append(example)
    made[-1].features.feature["__LINE_ID__"].bytes_list.value.append(line_id(rng).SerializeToString(deterministic=True))
    return made


def record_inputs(messages: list[Any]) -> list[bytes]:
    """Return one input per message, with changing options, and one with several records."""
    payloads = [message.SerializeToString(deterministic=True) for message in messages]
    single = [
        bytes([1 + 2 * place, (1 << place % 7) - 1]) + pieces([payload]) for place, payload in enumerate(payloads)
    ]
    several = bytes([0x55, 0x3F]) + pieces([*payloads[:4], b"\xff"])
    # Concatenated messages repeat fields, which protobuf merges.
    return [*single, several, bytes([1, 0]) + pieces([payloads[0] + payloads[-1]])]


# --- inputs that claim more than they hold ----------------------------------------------------------------------------


def hostile_batches() -> list[bytes]:
    """Return batches whose rows share much, and batches that claim to have many."""
    made = []
    line = LineId(cid="c" * 500, actions=[1, 2]).SerializeToString(deterministic=True)
    for size in (1 << 16, 1 << 21, 2**31 - 1, -1):
        batch = ExampleBatch(batch_size=size)
        batch.named_feature_list.add(name="__LABEL__", type=1).feature.add().float_list.value.extend([1] * 300)
        for _ in range(2):
            batch.named_feature_list.add(name="__LINE_ID__", type=1).feature.add().bytes_list.value.append(line)
        made.append(bytes([1, 0]) + pieces([batch.SerializeToString(deterministic=True)]))
    return made


def hostile_row_major() -> list[bytes]:
    """Return a batch of empty rows that share long features, one of them in many unpacked pieces."""
    batch = ExampleBatchRowMajor()
    line = LineId(cid="c" * 500).SerializeToString(deterministic=True)
    batch.shared_feature.add(name="__LINE_ID__").feature.bytes_list.value.append(line)
    shared = b"".join(b"\x09" + struct.pack("<Q", place) for place in range(100))
    arm = b"\x12" + bytes([len(shared) & 0x7F | 0x80, len(shared) >> 7]) + shared
    named = b"\x0a\x01a\x12" + bytes([len(arm) & 0x7F | 0x80, len(arm) >> 7]) + arm
    feature = b"\x0a" + bytes([len(named) & 0x7F | 0x80, len(named) >> 7]) + named
    rows = b"\x1a\x05\xa2\x06\x02\x18\x05" * 500  # each with its own LineId
    return [bytes([1, 0]) + pieces([batch.SerializeToString(deterministic=True) + feature + rows])]


def hostile_tf_examples() -> list[bytes]:
    """Return a record with many values of one LineId field, and one that names a field twice."""
    example = TfExample()
    example.features.feature["__ACTIONS__"].int64_list.value.extend(range(1000))
    once = example.SerializeToString(deterministic=True)
    return [bytes([1, 63]) + pieces([once]), bytes([1, 0]) + pieces([once + once])]


def hostile_lines() -> list[bytes]:
    """Return LineIds that mix packed and unpacked values, and one whose length is a lie."""
    word = struct.pack("<Q", 3)
    return [
        b"\x03" + word + line
        for line in (b"\x32\x01\x01\x30\x02", b"\x30\x02\x32\x01\x01", b"\x32\xff\xff\xff\xff\x0f")
    ]


def hostile_frames() -> list[bytes]:
    """Return sizes that no record has."""
    sizes = (2**30, 2**30 + 1, 0xFEFEFEFE, 2**64 - 1)
    return [bytes([bits, 3, 3, 3]) + struct.pack("<QQ", size, size) for size in sizes for bits in (0, 1, 4)]


# --- streams and states -----------------------------------------------------------------------------------------------


def framing_inputs(payloads: list[bytes]) -> list[bytes]:
    """Return one stream per framing, and two that are cut or damaged."""
    made = []
    for bits in (*range(16), 16, 32):
        framing = Framing.from_bits(bits)
        takes_sort_id = framing.sort_id and framing.kind == "flags" and not framing.lagrangex_header
        stream = b"".join(framing.frame(payload, sort_id=b"id" if takes_sort_id else b"") for payload in payloads)
        made.append(bytes([bits, 5, 1, 8]) + stream)
    made.append(bytes([16 | 128, 3, 3, 12]) + pieces(payloads))
    made.append(made[3][:-4])
    made.append(bytes([16, 0, 0, 0]) + Framing.tfrecord().frame(payloads[0]) + b"\xff" * 13)
    return made


def entries() -> list[bytes]:
    """Return one input per table shape of the target."""

    def floats(count: int) -> Any:
        return np.arange(count, dtype=np.float32)

    adam = SliceState(
        "adam", {"m": floats(4), "v": floats(4), "beta1_power": floats(1) + 0.5, "beta2_power": floats(1) + 0.5}
    )
    adagrad = SliceState("adagrad", {"norm": floats(2) + 1})
    softmax = SliceState("batch_softmax", {"global_step": np.array([77], np.int64)})
    sgd = SliceState("sgd", {})
    tables = [(3, (sgd,)), (2, (adagrad,)), (4, (adam,)), (1, (softmax,)), (9, (sgd, adam)), (2, ())]
    tables.append((5, (adagrad, softmax, adagrad)))
    made = []
    for shape, (dim, states) in enumerate(tables):
        records = [encode_entry(Entry(row_id, floats(dim), states, 1_700_000_000)) for row_id in (-1, 5)]
        made.append(bytes([shape, 0]) + pieces(records))
        made.append(bytes([shape, 1]) + pieces([encode_entry(Entry(9, floats(1), (), 0))]))
    made.append(bytes([0, 0]) + pieces([b"\x0a\x05table\x10\x02"]))
    made.append(bytes([1, 2]) + Framing.tfrecord().frame(encode_entry(Entry(1, floats(2), (adagrad,), 7))))
    return made


def item_pools(rng: random.Random) -> list[bytes]:
    """Return saved pools, as pieces, raw streams and parts of a sequence."""
    channels = []
    for channel in range(3):
        cache = ChannelCache(channel_id=channel)
        for item in range(3):
            data = cache.feature_datas.add(gid=item + 10 * channel, origin_cnt=2, sample_cnt=item)
            data.fids.extend([7 << 54 | item])
            fill(data.feature_columns.add(name="a").feature, "fid_v2_list", rng)
            fill(data.feature_columns.add(name="t").feature, "bytes_list", rng)
        channels.append(cache.SerializeToString(deterministic=True))
    word = struct.pack("<Q", 0x1234567890AB)
    raw = b"".join(Framing.tfrecord().frame(channel) for channel in channels)
    return [
        bytes([7, 0]) + word + raw,
        bytes([3, 1]) + word + b"\x00" + bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw,
        bytes([1, 2]) + word + pieces(channels),
        bytes([5, 3]) + word + pieces(channels[:2]),
    ]


def filter_values() -> list[bytes]:
    """Return operand files of each arm, for some operations."""
    values = [FilterValues() for _ in range(3)]
    values[0].float_list.value.extend([0.5, -1])
    values[1].int64_list.value.extend([1, -1, 2**40])
    values[2].bytes_list.value.extend([b"a", b"ab", b""])
    word = struct.pack("<q", 1)
    # The operation, the kind of the value (128 more: a list of them), the arm.
    choices = ((0, 3, 0), (2, 4, 0), (7, 0, 1), (9, 129, 1), (10, 133, 2), (12, 5, 2))
    return [bytes([op, kind]) + word + values[arm].SerializeToString(deterministic=True) for op, kind, arm in choices]


def stored_rows(ids: list[int]) -> bytes:
    """Return rows of the fuzz targets' training table as columns: ids, times, values and state of two slices."""
    count = len(ids)
    numbers = np.arange(count * 5, dtype="<f4").tobytes()
    return np.array(ids, "<i8").tobytes() + np.full(count, 1000, "<u4").tobytes() + numbers


def delta_segments() -> list[bytes]:
    """Return segments: complete ones, ones with tombstones and marks, widths that overflow, a header in raw bytes."""

    def numbers(shard: tuple[int, int], flags: int, upserts: int, tombstones: int, widths: bytes = b"") -> bytes:
        index, count = shard
        return bytes([count - 1, index, flags, upserts, tombstones]) + struct.pack("<q", 1000) + widths

    block = struct.pack("<I", 3) + stored_rows([1, -2, 3])
    single = struct.pack("<I", 1) + stored_rows([9])
    gone = np.array([1, 7], "<i8").tobytes()
    return [
        bytes([0x10]) + numbers((0, 1), 1, 3, 0) + pieces([block]),
        bytes([0x20]) + numbers((0, 1), 4, 4, 2) + pieces([block, single, gone, b"marks"]),
        bytes([0x12]) + numbers((0, 1), 1, 3, 0) + pieces([block]),
        bytes([0x16]) + numbers((1, 3), 0, 3, 0) + pieces([block]),
        bytes([0x10]) + numbers((0, 1), 2, 3, 0, struct.pack("<QQ", 2**32 - 1, 2**32 - 1)) + pieces([block]),
        bytes([0x01]) + pieces([struct.pack("<IIII", 1, 1, 0, 1) + bytes(60)]),
    ]


def snapshot_parts() -> list[bytes]:
    """Return part files of the training table, sound and with numbers that do not fit."""
    told = struct.pack("<Q", 4) + bytes([2]) + struct.pack("<QQ", 100, 4)
    blocks = bytes([3]) + pieces([stored_rows([1, -2, 3])]) + bytes([1]) + pieces([stored_rows([9])])
    return [
        bytes([0]) + told,
        bytes([0]) + told + blocks,
        bytes([1]) + told + blocks,
        bytes([2]) + told + blocks,
        bytes([4]) + told + blocks,
        bytes([8]) + told + bytes([255]) + struct.pack("<Q", 2**31) + pieces([stored_rows([1])]),
        bytes([16]) + told + blocks,
    ]


def table_specs() -> list[bytes]:
    """Return slices of several kinds, among them widths whose sum overflows 32 bits."""
    half = bytes([255]) + struct.pack("<Q", 2**31)
    plain = bytes([0, 0, 0, 0])
    return [
        bytes([0, 1, 4]) + plain,
        bytes([1, 2, 8]) + plain + bytes([4]) + bytes([0, 0, 1, 0]),
        bytes([0, 2]) + half + plain + half + plain,
        bytes([0, 1, 16, 3, 48, 48, 32, 16, 0, 4, 64, 16, 2, 112, 0]),
        bytes([0, 3, 1, 1, 32, 0, 0, 0, 0, 7, 9, 16, 32, 0, 0, 2, 16, 3, 32, 5, 13, 1, 3, 16, 16, 16, 112, 3, 32]),
    ]


def event_logs() -> list[bytes]:
    """Return segments of an event log: whole, torn, damaged, and raw bytes of a segment, an index and owners."""

    def batch(flags: int, records: int, body: bytes) -> bytes:
        return bytes([flags, records]) + struct.pack("<H", len(body)) + body

    whole = batch(0, 2, b"keyvalue") + batch(0, 0, b"") + batch(0, 3, b"k" * 40)
    made = [bytes([0, 0]) + whole, bytes([2, 5]) + whole, bytes([0, 0])]
    for flag in (1, 2, 4, 8, 16, 32):
        made.append(bytes([0, 1]) + batch(0, 1, b"ab") + batch(flag, 9, b"keyvalue") + whole)
    index = b"MLOGIDX1" + struct.pack("<Q", 3) + struct.pack("<QQq", 3, 64, -(1 << 63))
    made += [
        bytes([1, 3]) + index,
        bytes([1, 0]) + b'{"7": {"owner": 2, "sequence": 41}}',
        bytes([1, 0]) + b"MBT1" * 40,
    ]
    return made


def predict_messages() -> list[bytes]:
    """Return PredictRequests: records of several names, a version, a label, an output filter, plain content."""
    found = []
    for version, label, name, records in ((None, "", "examples", [b"a", b""]), (7, "", "example_batch", [b"abc"])):
        request = serving.PredictRequest(output_filter=["score"])
        request.model_spec.name, request.model_spec.version_label = "m", label
        request.model_spec.signature_name = "serving_default"
        if version is not None:
            request.model_spec.version.value = version
        tensor = request.inputs[name]
        tensor.dtype = 7
        tensor.tensor_shape.dim.add(size=len(records))
        tensor.string_val.extend(records)
        found.append(request.SerializeToString())
    return found


def http2_frames() -> list[bytes]:
    """Return options and frames: a call, calls in pieces, a wrong message, floods, and a connection without preface."""

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    def call(stream: int, message: bytes, *, announced: int | None = None, more: bytes = b"") -> bytes:
        head = literal(b":method", b"POST") + literal(b":scheme", b"http") + literal(b":path", b"/a.B/Predict")
        head += literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers") + more
        size = len(message) if announced is None else announced
        return frame(1, 4, stream, head) + frame(0, 1, stream, b"\0" + size.to_bytes(4, "big") + message)

    options = b"\0\xff"
    cut = call(1, b"abc")
    return [
        options + cut,
        b"\0\x01" + cut,
        options + call(1, b"a" * 200, more=literal(b"grpc-timeout", b"5S")) + call(3, b"", announced=9),
        options + call(1, b"a" * 50, announced=5000) + frame(3, 0, 1, b"\0\0\0\x08"),
        options + b"".join(cut[:-9] + frame(3, 0, number, b"\0\0\0\x08") for number in (1, 3, 5)),
        options + frame(6, 0, 0, b"12345678") * 3 + frame(8, 0, 0, b"\0\0\xff\xff") + frame(7, 0, 0, bytes(8)),
        options + frame(4, 0, 0, b"\0\x04\0\0\0\x01\0\x05\0\0\x40\0") + cut,
        b"\x01\xffGET / HTTP/1.1\r\n\r\n",
    ]


def csv_blocks() -> list[bytes]:
    """Return blocks of CSV, each behind the number of its fields less one and its delimiter."""
    blocks = [
        b'1,a,1.5\n-2,"b,c",2e3\n,NA,nan\n',
        b'18446744073709551615,"say ""hi""",true\r\n0x1F,"line\nend",false\r\n',
        b"1,2,3\r4,5,6\r\r\n7,8,9",
        b'5" pipe,"a"b,"x" \n"open,1,2\n',
        b"123456789,1234567890123456,0.30000000000000004\n\n9223372036854775808,1e400,-.5\n",
    ]
    return [b"\x02\x00" + block for block in blocks] + [b"\x00\x01x\n\n y \n", b"\x01\x02a\tb\n"]


def json_blocks() -> list[bytes]:
    """Return blocks of JSON lines, each behind an option of the declared types."""
    blocks = [
        b'{"a":1,"b":"x","c":[1,2]}\n{"b":"\\u00e9\\ud83d\\ude00\\n","a":-9223372036854775808}\r\n\n{}\n',
        b'{"a":1.5e-3,"d":{"e":[{},[null]]},"f":true}\n{"a":NaN,"f":null}',
        b'{"a":18446744073709551615}\n{"a":"1"}\n',
        b'null\n{"a":1}{"a":2}\n{"a":1,"a":2}\n{"a":"\\ud800"}\n{"a":[1,}\n',
        b'{"g":["a",null,"b"],"k":[]}\n{"g":null}\n',
    ]
    return [bytes([option]) + block for block in blocks for option in (2, 0x85)]


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the seeds of a target."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seed-*"):
        old.unlink()
    for number, data in enumerate(inputs):
        (folder / f"seed-{number:02d}").write_bytes(data)


def main() -> None:
    """Write every target's seeds."""
    rng = random.Random(1)
    write("instance", record_inputs(instances(rng)))
    write("example", record_inputs(examples(rng)))
    write("example_batch", [*record_inputs(example_batches(rng)), *hostile_batches()])
    write("example_batch_row_major", [*record_inputs(row_major_batches(rng)), *hostile_row_major()])
    write("tf_example", [*record_inputs(tf_examples(rng)), *hostile_tf_examples()])
    payloads = [
        examples(rng)[0].SerializeToString(deterministic=True),
        b"",
        instances(rng)[1].SerializeToString(deterministic=True),
    ]
    streams = framing_inputs(payloads)
    write("framing", [*streams, *hostile_frames()])
    messages = [example_batches(rng)[1], row_major_batches(rng)[0], tf_examples(rng)[0]]
    write("framing_probe", [bytes([9]) + stream[4:] for stream in streams[1:20:3]])
    for number, message in enumerate(messages):
        (CORPUS / "framing_probe" / f"seed-message-{number}").write_bytes(
            b"\x01" + message.SerializeToString(deterministic=True)
        )
    write("tfrecord", [b"\x00" + streams[16][4:], b"\x01\x20\x01" + pieces(payloads), b"\x03\x03\x80" + pieces([b"x"])])
    lines = [
        bytes([n]) + struct.pack("<Q", n * 77) + line_id(rng).SerializeToString(deterministic=True) for n in range(21)
    ]
    write("line_id", [*lines, *hostile_lines()])
    write("entry_dump", entries())
    write("item_pool", item_pools(rng))
    write("filter_values", filter_values())
    write("delta_segment", delta_segments())
    write("snapshot", snapshot_parts())
    write("event_log", event_logs())
    write("table_spec", table_specs())
    write(
        "json_text",
        [
            b'{"inputs": {"example_batch": [{"b64": "AAEC"}, {"b64":"AwQ="}]}}',
            b'{"instances":[{"user":7,"x":{"b64":"////"}}],"signature_name":"b64"}',
            b'{"a": {"b64": "A\\u0041AA"}, "b64": {"b64" : "AA==" }}',
        ],
    )
    write(
        "predict_json",
        [
            b'{"inputs": {"example_batch": [{"b64": "AAEC"}, {"b64":"AwQ="}]}}',
            b'{"instances":[{"examples":{"b64":"////"}},{"examples":[{"b64":""}]}],"signature_name":"s"}',
            b'{"inputs":{"b64":"AA=="}}',
            b"/v1/models/m/versions/12:predict",
        ],
    )
    write("predict_message", predict_messages())
    write(
        "http1",
        [
            b"\xffPOST /v1/models/m:predict?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue",
            b"\x00GET / HTTP/1.0\r\nConnection: keep-alive, x\r\nContent-Encoding: gzip",
            b"\x024;a=b\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n",
        ],
    )
    write("http2", http2_frames())
    write("csv", csv_blocks())
    write("json_lines", json_blocks())
    write("quantized", [bytes([n]) + encode_quantized([0.5 * k for k in range(n)]) for n in (1, 4, 5, 16)])


if __name__ == "__main__":
    main()
