"""
The native engine. Private: use the public faces in monolith.embedding.
"""

from collections.abc import Mapping, Sequence
import enum
from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray


def crc32c(data: bytes | bytearray | memoryview, seed_crc: int = 0) -> int:
    """Extend a CRC-32C by the bytes of ``data``."""

def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """The checksum as TFRecord stores it."""

def city_hash64(data: bytes | bytearray | memoryview) -> int:
    """CityHash64 (version 1.1) of the bytes."""

def frame_record(payload: bytes | bytearray | memoryview) -> bytes:
    """One TFRecord."""

def scan_records(data: bytes | bytearray | memoryview, offset: int, source: str, limit: int, is_last: bool) -> tuple[list[bytes], int]:
    """
    At most ``limit`` complete records, and the bytes they take; at the last piece nothing may be left over.
    """

def skip_records(data: bytes | bytearray | memoryview, offset: int, source: str, limit: int) -> tuple[int, int]:
    """
    Check at most ``limit`` complete records; their number, and the bytes they take.
    """

def read_metadata(data: bytes | bytearray | memoryview, source: str) -> list[tuple[str, int]]:
    """(table name, entries) of a whole metadata file."""

def frame_metadata(table_name: str, entries: int) -> bytes:
    """One metadata record, framed."""

def frame_item(id: int, values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bytes:
    """One EntryDump of id and values only, framed."""

class DumpSchema:
    """How the rows of one table are spelled in EntryDump records."""

    def __init__(self, slices: Sequence[tuple[int, str, Mapping[str, float]]]) -> None: ...

    @property
    def dim(self) -> int: ...

    @property
    def row_words(self) -> int: ...

    def decode(self, data: bytes | bytearray | memoryview, offset: int, source: str, limit: int, allow_missing_state: bool) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint32], int]:
        """
        (ids, times_s, rows, value_counts, consumed) of at most ``limit`` records.
        """

    def encode(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], times_s: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> bytes:
        """Framed records of the rows."""

def set_threads(arg: int, /) -> None: ...

def threads() -> int: ...

class PartConfig:
    def __init__(self, kind: str, settings: Mapping[str, float]) -> None: ...

class SliceConfig:
    def __init__(self) -> None: ...

    @property
    def dim(self) -> int: ...

    @dim.setter
    def dim(self, arg: int, /) -> None: ...

    @property
    def optimizer(self) -> PartConfig: ...

    @optimizer.setter
    def optimizer(self, arg: PartConfig, /) -> None: ...

    @property
    def delay_lambda(self) -> float: ...

    @delay_lambda.setter
    def delay_lambda(self, arg: float, /) -> None: ...

    @property
    def stochastic_rounding(self) -> bool: ...

    @stochastic_rounding.setter
    def stochastic_rounding(self, arg: bool, /) -> None: ...

    @property
    def initializer(self) -> PartConfig: ...

    @initializer.setter
    def initializer(self, arg: PartConfig, /) -> None: ...

    @property
    def compressor(self) -> PartConfig: ...

    @compressor.setter
    def compressor(self, arg: PartConfig, /) -> None: ...

class NanPolicy(enum.Enum):
    refuse = 0

    skip = 1

    apply = 2

class Pooling(enum.Enum):
    none = 0

    sum = 1

    mean = 2

    first = 3

class TableConfig:
    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def slices(self) -> list[SliceConfig]: ...

    @slices.setter
    def slices(self, arg: Sequence[SliceConfig], /) -> None: ...

    @property
    def expire_days(self) -> int: ...

    @expire_days.setter
    def expire_days(self, arg: int, /) -> None: ...

    @property
    def slot_expire_days(self) -> dict[int, int]: ...

    @slot_expire_days.setter
    def slot_expire_days(self, arg: Mapping[int, int], /) -> None: ...

    @property
    def admission(self) -> PartConfig: ...

    @admission.setter
    def admission(self, arg: PartConfig, /) -> None: ...

    @property
    def slot_thresholds(self) -> dict[int, int]: ...

    @slot_thresholds.setter
    def slot_thresholds(self, arg: Mapping[int, int], /) -> None: ...

    @property
    def miss_is_initial(self) -> bool: ...

    @miss_is_initial.setter
    def miss_is_initial(self, arg: bool, /) -> None: ...

    @property
    def max_bytes(self) -> int: ...

    @max_bytes.setter
    def max_bytes(self, arg: int, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def is_deterministic(self) -> bool: ...

    @is_deterministic.setter
    def is_deterministic(self, arg: bool, /) -> None: ...

    @property
    def nan_policy(self) -> NanPolicy: ...

    @nan_policy.setter
    def nan_policy(self, arg: NanPolicy, /) -> None: ...

    @property
    def touched_capacity(self) -> int: ...

    @touched_capacity.setter
    def touched_capacity(self, arg: int, /) -> None: ...

    @property
    def is_serving(self) -> bool: ...

    @is_serving.setter
    def is_serving(self, arg: bool, /) -> None: ...

    @property
    def skip_zero_rows(self) -> bool: ...

    @skip_zero_rows.setter
    def skip_zero_rows(self, arg: bool, /) -> None: ...

class TableStats:
    @property
    def nan_rows_skipped(self) -> int: ...

    @property
    def ids_filtered(self) -> int: ...

    @property
    def rows_evicted(self) -> int: ...

    @property
    def touched_dropped(self) -> int: ...

class StateField:
    @property
    def name(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def words(self) -> int: ...

    @property
    def is_int64(self) -> bool: ...

class Table:
    def __init__(self, arg: TableConfig, /) -> None: ...

    @property
    def dim(self) -> int: ...

    @property
    def row_words(self) -> int: ...

    @property
    def state_fields(self) -> list[list[StateField]]: ...

    @property
    def max_time_s(self) -> int: ...

    @property
    def stats(self) -> TableStats: ...

    @property
    def skips_zero_rows(self) -> bool: ...

    @property
    def shards(self) -> int: ...

    def size(self) -> int: ...

    def memory_bytes(self) -> int: ...

    def lookup(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], found: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')] | None) -> None: ...

    def contains(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], found: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def assign(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], time_s: int) -> None: ...

    def assign_add(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], time_s: int) -> None: ...

    def reinitialize(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], existed: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def erase(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def evict(self, now_s: int) -> int: ...

    def clear(self) -> None: ...

    def explain(self, id: int) -> str: ...

    def drain_touched(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def shard_ids(self, shard: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def copy_to(self, other: Table) -> None: ...

    def raw_rows(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.uint32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]: ...

    def import_rows(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], times: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

class LookupJob:
    def __init__(self, table: Table, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, pooling: Pooling, first_n: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class GradientJob:
    def __init__(self, table: Table, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, pooling: Pooling, first_n: int, grads: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], learning_rates: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, latest: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, time_s: int, step: int, dedup: bool) -> None: ...

def lookup_all(arg: Sequence[LookupJob], /) -> None: ...

def apply_all(arg: Sequence[GradientJob], /) -> None: ...

def set_failpoint(name: str) -> None: ...

def failpoint(name: str) -> None: ...

class SnapshotPart:
    def __init__(self, path: str, bytes: int, rows: int) -> None: ...

    @property
    def path(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def rows(self) -> int: ...

class Cut:
    def __init__(self, table: Table) -> None: ...

    @property
    def max_time_s(self) -> int: ...

    @property
    def turn(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def scales(self) -> list[float]: ...

    @property
    def filter(self) -> bytes: ...

    def write(self, generation: int, paths: Sequence[str]) -> list[SnapshotPart]: ...

def verify_snapshot(table: Table, generation: int, parts: Sequence[SnapshotPart]) -> None: ...

def read_snapshot(table: Table, generation: int, parts: Sequence[SnapshotPart], index: int, count: int) -> int: ...

def restore_extras(table: Table, max_time_s: int, scales: Sequence[float], turn: int, filter: bytes) -> None: ...

class Records:
    """Some serialized messages of one stream, in order."""

    def __init__(self, payloads: Sequence[bytes | bytearray | memoryview], source: str = 'records', offset: int = 0) -> None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> bytes: ...

    @property
    def source(self) -> str: ...

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""

    @property
    def offsets(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
        """Where each payload begins in the stream."""

    @property
    def source_keys(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """The data source of each record's header, 0 without one."""

def pooled_bytes() -> int:
    """Bytes that wait in the buffer pool to be used again."""

class FrameReader:
    """The records of one stream, from pieces as they come."""

    def __init__(self, framing: int, source: str, offset: int = 0, record: int = 0) -> None: ...

    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Add the next piece of the stream."""

    def take(self, most_records: int, most_bytes: int, allow_short: bool = False) -> Records | None:
        """
        Give the next lot, or None when a full one is not here yet (with allow_short: no complete record).
        """

    def finish(self) -> None:
        """Say that no piece follows; an unfinished record is an error."""

    @property
    def offset(self) -> int:
        """Where the stream stands after the records taken."""

    @property
    def records(self) -> int:
        """Records taken, from the start of the stream."""

    @property
    def first_sort_id(self) -> bytes:
        """The sort id of the first record that was seen."""

    @property
    def source(self) -> str:
        """What the stream is called in errors."""

class FramingProbe:
    """What comes of reading the start of a stream with one framing."""

    @property
    def records(self) -> int: ...

    @property
    def empty(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def has_zero_words(self) -> bool: ...

    @property
    def has_high_words(self) -> bool: ...

    @property
    def is_cut(self) -> bool: ...

    @property
    def damage(self) -> str: ...

    @property
    def fits(self) -> list[tuple[int, int, int]]:
        """
        (known fields, unknown fields, records that cannot be it) of each kind of message.
        """

def frame(framing: int, payload: bytes | bytearray | memoryview, sort_id: bytes | bytearray | memoryview = b'', source_key: int = 0) -> bytes:
    """One framed record."""

def read_frame_header(framing: int, data: bytes | bytearray | memoryview) -> tuple[int, int, bytes, int, int, int]:
    """
    (header bytes, payload size, sort id, lagrangex word, prefix word, skipped word) of the first frame.
    """

def probe_framing(framing: int, data: bytes | bytearray | memoryview, most_records: int, is_whole: bool) -> FramingProbe:
    """Read the start of a stream with one framing."""

def fit_records(records: Records, most_records: int) -> list[tuple[int, int, int]]:
    """
    (known fields, unknown fields, records that cannot be it) of each kind of message, over the first records.
    """
