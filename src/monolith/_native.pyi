"""
The native engine. Private: use the public faces in monolith.embedding.
"""

from collections.abc import Mapping, Sequence
import enum
import os
from typing import Annotated, Any

import numpy
import numpy.typing
from numpy.typing import NDArray
from typing_extensions import Buffer


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text; None where it is invalid."""

def lift_records(json: bytes) -> tuple[bytes, list[bytes]] | None:
    """
    Return the JSON with ``{"b64":n}`` in the place of its n-th base64 object, and the bytes of those; None for a text without such objects, and where they cannot be taken out like this.
    """

def encode_floats(values: numpy.typing.NDArray[numpy.float32]) -> bytes:
    """
    An array as JSON: the shortest numbers that are read as the same floats.
    """

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

class TorchThreads:
    def __init__(self, threads: int) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

def kernel_level() -> str: ...

def kernel_levels() -> list[str]: ...

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
    def occurrence_threshold(self) -> int: ...

    @occurrence_threshold.setter
    def occurrence_threshold(self, arg: int, /) -> None: ...

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
    def evicts_when_full(self) -> bool: ...

    @evicts_when_full.setter
    def evicts_when_full(self, arg: bool, /) -> None: ...

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
    def rows_evicted_full(self) -> int: ...

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
    def parts(self) -> int: ...

    def size(self) -> int: ...

    def memory_bytes(self) -> int: ...

    def lookup(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], found: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')] | None) -> None: ...

    def contains(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], found: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def assign(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], time_s: int) -> None: ...

    def assign_add(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], time_s: int) -> None: ...

    def reinitialize(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], existed: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def erase(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def evict(self, now_s: int, force: bool = False) -> int: ...

    def check_expiry(self, now_s: int) -> None: ...

    @property
    def forces_expiry(self) -> bool: ...

    @forces_expiry.setter
    def forces_expiry(self, arg: bool, /) -> None: ...

    def force_clock(self, time_s: int) -> None: ...

    def set_budget(self, bytes: int) -> None: ...

    @property
    def evicts_when_full(self) -> bool: ...

    @evicts_when_full.setter
    def evicts_when_full(self, arg: bool, /) -> None: ...

    def clear(self) -> None: ...

    def explain(self, id: int) -> str: ...

    def drain_touched(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def part_ids(self, part: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def copy_to(self, other: Table, index: int = 0, count: int = 1) -> None: ...

    def raw_rows(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.uint32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]: ...

    def import_rows(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], times: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

class RowPlan:
    """
    The ids of one lookup, searched once, for the update of the same rows.

    A lookup fills it; ``apply_planned_gradients`` of the same table then neither groups nor
    searches the ids again. The results are those of an update without a plan. Reuse it from
    step to step: it keeps its memory. One call at a time.
    """

    def __init__(self) -> None: ...

    @property
    def is_filled(self) -> bool:
        """Whether a lookup has filled it."""

    @property
    def targets(self) -> int:
        """Rows of a gradient."""

    @property
    def first_n(self) -> int:
        """Rows per bag with mode ("first", n); otherwise 0."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that it keeps."""

class LookupJob:
    def __init__(self, table: Table, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, pooling: Pooling, first_n: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], plan: RowPlan | None = None) -> None: ...

class GradientJob:
    def __init__(self, table: Table, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, pooling: Pooling, first_n: int, grads: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], learning_rates: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, latest: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, time_s: int, step: int, dedup: bool, plan: RowPlan | None = None) -> None: ...

def lookup_all(arg: Sequence[LookupJob], /) -> None: ...

def apply_all(arg: Sequence[GradientJob], /) -> None: ...

def set_failpoint(name: str) -> None: ...

def failpoint(name: str) -> None: ...

class SnapshotPart:
    def __init__(self, path: str | bytes | os.PathLike[str], bytes: int, rows: int) -> None: ...

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

    def write(self, generation: int, paths: Sequence[str | bytes | os.PathLike[str]], first: int = 0, count: int | None = None) -> list[SnapshotPart]: ...

def verify_snapshot(table: Table, generation: int, parts: Sequence[SnapshotPart]) -> None: ...

def read_snapshot(table: Table, generation: int, parts: Sequence[SnapshotPart], index: int, count: int) -> int: ...

def convert_snapshot(saved: Table, table: Table, generation: int, parts: Sequence[SnapshotPart], index: int, count: int) -> None: ...

def restore_extras(table: Table, max_time_s: int, scales: Sequence[float], turn: int, filter: bytes) -> None: ...

def merge_filter(table: Table, state: bytes) -> None: ...

class DeltaFlavour(enum.Enum):
    durable = 1

    serving = 2

class DeltaSlice:
    @property
    def dim(self) -> int: ...

    @property
    def kind(self) -> str: ...

class DeltaTable:
    @property
    def name(self) -> str: ...

    @property
    def is_complete(self) -> bool: ...

    @property
    def upserts(self) -> int: ...

    @property
    def tombstones(self) -> int: ...

    @property
    def max_time_s(self) -> int: ...

    @property
    def slices(self) -> list[DeltaSlice]: ...

class DeltaHeader:
    @property
    def flavour(self) -> DeltaFlavour: ...

    @property
    def shard_index(self) -> int: ...

    @property
    def shard_count(self) -> int: ...

    @property
    def log(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def previous(self) -> int: ...

    @property
    def wall_time_us(self) -> int: ...

    @property
    def newest_event_s(self) -> int: ...

    @property
    def tables_hash(self) -> int: ...

    @property
    def marks_bytes(self) -> int: ...

    @property
    def tables(self) -> list[DeltaTable]: ...

class DeltaCollector:
    def __init__(self, tables: Sequence[Table], flavour: DeltaFlavour, index: int, count: int, is_known: bool) -> None: ...

    def collect(self) -> bool: ...

    def abandon(self) -> None: ...

    def write(self, path: str | bytes | os.PathLike[str], log: int, sequence: int, previous: int, wall_time_us: int, marks: bytes) -> None: ...

def read_delta_header(path: str | bytes | os.PathLike[str]) -> DeltaHeader: ...

def verify_delta(path: str | bytes | os.PathLike[str]) -> DeltaHeader: ...

def read_delta_marks(path: str | bytes | os.PathLike[str]) -> bytes: ...

def read_delta_ids(path: str | bytes | os.PathLike[str], index: int, count: int) -> list[Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def delta_tables_hash(tables: Sequence[Table], flavour: DeltaFlavour) -> int: ...

def replay_delta(path: str | bytes | os.PathLike[str], tables: Sequence[Table], index: int, count: int) -> DeltaHeader: ...

def write_image(table: Table, path: str | bytes | os.PathLike[str]) -> tuple[int, int]:
    """Write a serving table; return (bytes, rows)."""

def load_image(table: Table, path: str | bytes | os.PathLike[str], bytes: int, is_read: bool) -> bool:
    """
    Let an empty serving table use an image; return whether the file is mapped.
    """

class Records:
    """Some serialized messages of one stream, in order."""

    def __init__(self, payloads: Sequence[bytes | bytearray | memoryview], source: str = 'records', offsets: Sequence[int] | None = None, source_keys: Sequence[int] | None = None) -> None: ...

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

def batch_rows(record: bytes) -> int | None:
    """
    Return the rows that a serialized ExampleBatch claims; None where it is not a message.
    """

class Columns:
    """Names of features and their column numbers; only grows."""

    def __init__(self) -> None: ...

    def want(self, name: str) -> int:
        """The column of that name; made when it is new."""

    def __len__(self) -> int: ...

    def name(self, column: int) -> str: ...

class Rows:
    """A sequence of parsed rows."""

    def __init__(self) -> None: ...

    def __len__(self) -> int: ...

    def slice(self, begin: int, end: int) -> Rows: ...

    def append(self, other: Rows) -> None: ...

    def keys(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
        """The random seed of each row."""

    def source_keys(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """The data source of each row, 0 when it is not known."""

class ShuffleWindow:
    """The rows of one window in random order."""

    def __init__(self, size: int, seed: int) -> None: ...

    @property
    def missing(self) -> int:
        """Rows that the window does not have yet."""

    @property
    def left(self) -> int:
        """Rows that were added and not read."""

    def add(self, rows: Rows) -> None:
        """Add the next rows, at most ``missing``; copies their values."""

    def read(self) -> Rows:
        """Return the next rows of the result; none at the end."""

class RowParser:
    """Turns records into rows."""

    def __init__(self, record: str, columns: Columns, keep_all: bool = False, skip_corrupt: bool = False, label_features: Sequence[str] = [], weight_feature: str = 'instance_weight', aliases: Mapping[str, int] = {}, line_fields: Sequence[tuple[str, int, str, bool, float]] = [], seed: int = 0) -> None: ...

    def parse(self, records: Records) -> Rows: ...

    @property
    def next_row(self) -> int: ...

    @next_row.setter
    def next_row(self, arg: int, /) -> None: ...

    @property
    def corrupt_records(self) -> int: ...

def mix(seed: int, key: int) -> int:
    """A well-mixed number of the two."""

def encode_examples(rows: Rows, columns: Columns) -> list[bytes]:
    """Each row as a serialized Example."""

class BatchData:
    """The arrays of one batch."""

    @property
    def rows(self) -> int: ...

    @property
    def value_kinds(self) -> bytes:
        """A byte per sparse feature: the place of its type in VALUE_TYPES."""

    def ids(self, place: int, writable: bool = False) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], bool]: ...

    def dense(self, place: int, writable: bool = False) -> Any: ...

    def extra(self, place: int, writable: bool = False) -> Any: ...

    def label(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]: ...

    def label_mask(self, writable: bool = False) -> numpy.typing.NDArray[numpy.bool_]: ...

    def weight(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]: ...

    def sample_rate(self, writable: bool = False) -> numpy.typing.NDArray[numpy.float32]: ...

    def event_time_s(self, writable: bool = False) -> numpy.typing.NDArray[numpy.int64]: ...

    def uid(self, writable: bool = False) -> numpy.typing.NDArray[numpy.int64]: ...

    def actions(self, writable: bool = False) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], bool]: ...

class Assembler:
    """Turns rows into a batch."""

    def __init__(self, sparse: Sequence[tuple[str, int, int, bool, str, bool]], dense: Sequence[tuple[str, int, int, str, float, bool]], extras: Sequence[tuple[tuple[str, int, str, bool, float], int]], labels: int, missing_label: float, keeps_fid_version: bool) -> None: ...

    def assemble(self, rows: Rows) -> BatchData: ...

class RowRule:
    """Keeps or drops one row, and may edit it."""

def all_rule(rules: Sequence[RowRule]) -> RowRule:
    """Return the rule that keeps rows that every rule keeps."""

def any_rule(rules: Sequence[RowRule]) -> RowRule:
    """Return the rule that keeps rows that any rule keeps; all rules run."""

def filter_by_fids(filter_fids: Sequence[int], has_fids: Sequence[int], select_fids: Sequence[int], has_actions: Sequence[int], req_time_min: int, select_slots: Sequence[int]) -> RowRule: ...

def filter_by_action(has_actions: Sequence[int]) -> RowRule: ...

def filter_by_label(thresholds: Sequence[float], filter_equal: bool) -> RowRule: ...

def filter_by_source(keys: Sequence[int]) -> RowRule: ...

def set_source(chnids: Sequence[int], keys: Sequence[int], default_key: int) -> RowRule: ...

def filter_by_value(field: tuple[str, int, str, bool, float], op: str, ints: Sequence[int], reals: Sequence[float], texts: Sequence[bytes], keep_empty: bool) -> RowRule: ...

def filter_by_feature_value(name: str, column: int, kind: str, op: str, ints: Sequence[int], reals: Sequence[float], texts: Sequence[bytes], keep_empty: bool) -> RowRule: ...

def add_action(field: tuple[str, int, str, bool, float], op: str, ints: Sequence[int], reals: Sequence[float], texts: Sequence[bytes], action: int) -> RowRule: ...

def add_label(tasks: Sequence[tuple[Sequence[int], Sequence[int], float]], negative_value: float, new_sample_rate: float, seed: int) -> RowRule: ...

def scatter_label(chnids: Sequence[int], places: Sequence[int]) -> RowRule: ...

def multi_label(head_field: tuple[str, int, str, bool, float], int_heads: Sequence[int], text_heads: Sequence[str], places: Sequence[int], task_num: int, use_origin_label: bool, pos_actions: Sequence[int], neg_actions: Sequence[int], action_priority: Sequence[int], pos_label: float, neg_label: float) -> RowRule: ...

def label_upper_bound(bounds: Sequence[float]) -> RowRule: ...

def label_normalization(methods: Sequence[str], values: Sequence[float]) -> RowRule: ...

def use_field_as_label(field: tuple[str, int, str, bool, float], overwrite_invalid: bool, threshold: float) -> RowRule: ...

def fill_rank(source: str, rank_num: int) -> RowRule: ...

def special_strategy(strategies: Sequence[tuple[int, float, float | None]], keep_empty: bool, seed: int) -> RowRule: ...

def negative_sample(drop_rate: float, label_index: int, threshold: float, action_priority: Sequence[int], actions: Sequence[int], rates: Sequence[float], correct_sample_rate: bool, seed: int) -> RowRule: ...

def switch_slot(switches: Sequence[tuple[tuple[str, int, int], int, int]]) -> RowRule: ...

def feature_combine(a: tuple[str, int, int], b: tuple[str, int, int], slot: int, to_column: int) -> RowRule: ...

def extract_fid(name: str, from_column: int, to_column: int, slot: int, method: str, scale: float) -> RowRule: ...

class ItemPool:
    """Items seen lately, by channel."""

    def __init__(self, feature_names: Sequence[str], max_items: int) -> None: ...

    def __len__(self) -> int: ...

    @property
    def feature_names(self) -> list[str]: ...

    @property
    def channels(self) -> list[int]:
        """Ids of the channels, ascending."""

    @property
    def log_size(self) -> int:
        """Changes that are kept for live marks."""

    def items(self, channel: int) -> list[tuple[int, int, int]]:
        """(id, times seen, times sampled) of a channel's items, oldest first."""

    def state(self, shard: int = 0, shards: int = 1) -> bytes:
        """TFRecords of ChannelCache messages."""

    def restore(self, streams: Sequence[bytes | bytearray | memoryview], source: str = 'item pool') -> None:
        """Replace everything by the content of the streams."""

class StateMark:
    """Names the state of an operation at one moment."""

class RowOp:
    """Turns rows into rows."""

    def run(self, rows: Rows) -> None:
        """Change ``rows`` in place."""

    @property
    def rows_in(self) -> int: ...

    @property
    def rows_out(self) -> int: ...

    @property
    def has_state(self) -> bool: ...

    def state(self) -> bytes:
        """State of the operation; empty for most."""

    def restore(self, state: bytes | bytearray | memoryview) -> None: ...

    def mark(self) -> StateMark | None:
        """
        Name the present state, cheaply; None when there is no state. The mark is released with the object.
        """

    def state_at(self, mark: StateMark) -> bytes:
        """The state as it was at the mark."""

    @property
    def has_pool(self) -> bool: ...

    @property
    def pools(self) -> list[ItemPool]:
        """The item pools inside."""

def rule_op(rules: Sequence[RowRule]) -> RowOp:
    """The operation that keeps the rows which every rule keeps."""

def sequence_op(ops: Sequence[RowOp]) -> RowOp:
    """One operation after the other."""

def reweight(action_priority: Sequence[int], weights: Sequence[tuple[int, int, float | None]], adds: bool, seed: int) -> RowOp: ...

class NegativeRows:
    """
    The positive rows, the features of an item, and the label of negatives.
    """

    def __init__(self, item_features: Sequence[tuple[str, int, int]], index_feature: tuple[str, int, int] | None, positive_actions: Sequence[int], action_priority: Sequence[int], label_index: int, positive_label: float, negative_label: float, negative_action: int | None, exclude_own_item: bool) -> None: ...

def negative_gen(rows: NegativeRows, neg_num: int, channel_feature: tuple[str, int, int] | None, start_num: int, max_item_num: int, throw_origin: bool, throw_origin_neg: bool, cache_only_pos: bool, cache_negative_actions: Sequence[int], real_neg_instance_weight: float, sampled_neg_instance_weight: float, unbias_sampled_neg: bool, origin_neg_in_pool_proba: float, neg_sample_decay_factor: float, easy_hard_ratio: float, seed: int) -> RowOp: ...

def in_batch_negatives(rows: NegativeRows, num: int, weight: float, seed: int) -> RowOp: ...

def standard_line_fields() -> list[tuple[str, int, str, bool, float]]:
    """
    (name, number, kind, is_repeated, default) of the fields that LineId always has.
    """

def read_filter_values(message: bytes | bytearray | memoryview) -> tuple[list[float], list[int], list[bytes]]:
    """(floats, ints, texts) of a FilterValues message."""

def ragged_combine(values_a: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets_a: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values_b: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets_b: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], slot: int, version: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def ragged_join(parts: Sequence[tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]]]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def unique_ids(values: numpy.typing.NDArray[numpy.int64]) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    The distinct ids in the order first seen, and the place of every value.
    """

def ragged_mask(values: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], fid: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

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
        """Name of the stream in errors."""

class FramingProbe:
    """Result of reading the start of a stream with one framing."""

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

class Column:
    """One column of a table in memory, checked; holds on to its buffers."""

    def __init__(self, name: str, kind: str, type: str, *, rows: int, value_count: int, values: Buffer | None = None, text_offsets: Buffer | None = None, value_valid: Buffer | None = None, list_offsets: Buffer | None = None, list_valid: Buffer | None = None, wide_list: bool = False, first_value: int = 0, first_row: int = 0, line_field: tuple[str, int, str, bool, float] | None = None) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """The arm of Feature that the values become."""

    def __len__(self) -> int: ...

def encode_columns(columns: Sequence[Column], begin: int, end: int, source: str, offset: int) -> Records:
    """
    Rows from begin to end of the columns as one record of cells; offset is the number of row begin in the stream. As bytes, the record is an ExampleBatch.
    """

class ParsedText:
    """Columns of a block of text."""

    @property
    def rows(self) -> int: ...

    @property
    def problem(self) -> tuple[int, int, str, bytes, str] | None:
        """The first error: row, byte of the block, column, value, reason."""

    def column(self, place: int) -> tuple[str, int, Any, Any, Any, Any, Any]:
        """
        Return the type, the number of values, and the buffers: values, text offsets, validity, list offsets, validity of lists.
        """

def parse_csv(block: Buffer, delimiter: str, width: int, fields: Sequence[tuple[str, str, bool, int]]) -> ParsedText:
    """
    Return columns of the rows of a block; a field is (name, type, is a list, place in the row).
    """

def infer_csv(block: Buffer, delimiter: str, width: int) -> tuple[list[tuple[str, str, bool]], tuple[int, int, str, bytes, str] | None]:
    """Return the types of the fields of a row, and the first error."""

def cut_csv(block: Buffer, delimiter: str) -> int:
    """Return the end of the last whole row of a block; 0 without one."""

def parse_json_lines(block: Buffer, fields: Sequence[tuple[str, str, bool, int]]) -> ParsedText:
    """
    Return members of the objects of a block; a field is (name, type, is a list, 0).
    """

def infer_json_lines(block: Buffer) -> tuple[list[tuple[str, str, bool]], tuple[int, int, str, bytes, str] | None]:
    """
    Return name, type and whether it is a list of each member, and the first error.
    """

class StepPlan:
    """The ids of one batch, numbered per table. Immutable."""

    @property
    def rows(self) -> int:
        """Examples."""

    @property
    def occurrences(self) -> int:
        """Ids that count, repeated ones included."""

    def ids(self, table: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """The unique ids of a table in order of first occurrence, a view."""

    def counts(self, table: int) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """How often each of ids(table) occurs, a view."""

    def pool(self, rows: Sequence[Any], outputs: Sequence[Any]) -> None:
        """
        Fill every output (rows, width) from the rows (unique ids, dim) of every table.
        """

    def gather(self, tables: Sequence[Table], outputs: Sequence[Any]) -> None:
        """
        Fill every output (rows, width) with the present rows of the tables, one per table of the plan.
        """

    def scatter(self, grads: Sequence[Any], rows: Sequence[Any]) -> list[float]:
        """
        Fill the gradient of every unique id's row; return the sum of squares per table. None counts as zeros.
        """

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed plan."""

    def pack(self, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Copy the plan into one buffer, for a device that fills outputs itself."""

class StepRows:
    """The rows of a plan's ids in its tables: pulled, then pushed once."""

    def __init__(self, tables: Sequence[Table]) -> None: ...

    def pull(self, plan: StepPlan) -> list[Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]:
        """Return one row per unique id of each table, (unique ids, dim)."""

    def push(self, grads: Sequence[Any], learning_rates: Sequence[Any], time_s: int, step: int) -> None:
        """
        Take one optimizer step per unique id of the last pull, without a second search.
        """

    @property
    def memory_bytes(self) -> int:
        """Bytes that it keeps."""

class Layouts:
    """How rows of tables become the tensors of a model."""

    def __init__(self, table_dims: Sequence[int], features: Sequence[tuple[int, str, int]], parts: Sequence[tuple[int, int, int, int, int, int]], output_widths: Sequence[int], id_transforms: Sequence[tuple[int, int, int, bool]] = []) -> None: ...

    def plan(self, rows: int, values: Sequence[Any], offsets: Sequence[Any], shared: Sequence[bool]) -> StepPlan:
        """Number the ids of one batch."""

    def plan_of(self, batch: BatchData, places: Sequence[int]) -> StepPlan:
        """
        The same for ids that a parser left in a batch: feature i is at places[i] of it.
        """

def sum_pairs(vectors: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], together: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], pairs: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Fill ``together`` with the sum of the vectors of each example, and ``pairs`` with that of the products of all pairs.
    """

def pair_gradients(vectors: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], together: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], grads: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], others: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """
    Fill ``out`` with the gradient of the vectors, from that of the pairs and the sum of all other gradients.
    """

def ps_tables_hash(names: Sequence[str], dims: Sequence[int]) -> int: ...

def ps_shard_of(ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shards: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

class PsPause:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object | None, error: object | None, trace: object | None) -> None: ...

class PsShard:
    def __init__(self, index: int, count: int, tables: Sequence[Table], names: Sequence[str]) -> None: ...

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def instance(self) -> int: ...

    @property
    def tables_hash(self) -> int: ...

    def pull(self, request: Buffer, *, half: bool = False, timeout_ms: int | None = None, max_reply_bytes: int | None = None) -> bytes: ...

    def push(self, request: Buffer, *, half: bool = False, timeout_ms: int | None = None) -> bytes: ...

    def stats(self) -> dict[str, Any]: ...

    def pause_pushes(self) -> PsPause: ...

    def hold_pushes(self, hold: int, lease_ms: int) -> None: ...

    def settle_pushes(self, hold: int, pushes: Sequence[tuple[int, int]], timeout_ms: int) -> bool: ...

    def release_pushes(self, hold: int) -> bool: ...

    def client_marks(self) -> bytes: ...

    def restore_client_marks(self, marks: bytes) -> None: ...

    def put_job_record(self, key: int, client: int, revision: int, value: bytes) -> None: ...

    def job_records(self) -> list[tuple[int, int, int, bytes]]: ...

    def replace_job_records(self, records: Sequence[tuple[int, int, int, bytes]]) -> None: ...

class PsListener:
    def __init__(self, shard: PsShard, *, unix_path: str | bytes | os.PathLike[str] = '', host: str = '', port: int = 0, token: bytes, max_frame_bytes: int = 268435456, max_connections: int = 1024, max_inflight_bytes: int = 1073741824) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def connections(self) -> int: ...

    @property
    def inflight_bytes(self) -> int: ...

    def close(self) -> None: ...

class PsFailure:
    @property
    def server(self) -> int: ...

    @property
    def address(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def error(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def may_retry(self) -> bool: ...

    @property
    def is_surely_not_applied(self) -> bool: ...

class PsConnection:
    def __init__(self, address: str, token: bytes, timeout_ms: int, *, shard: int, shards: int, tables_hash: int) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def instance(self) -> int: ...

    @property
    def idle_sockets(self) -> int: ...

    def connect(self) -> int: ...

    def close(self) -> None: ...

class PsFanOut:
    def __init__(self, connections: Sequence[PsConnection], dims: Sequence[int]) -> None: ...

    def pull(self, ids: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None], rows: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None], *, half: bool = False, timeout_ms: int) -> None: ...

    def push(self, ids: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None], grads: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None], counts: Sequence[Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None], learning_rates: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None], *, client: int, sequence: int, time_s: int, step: int, half: bool = False, timeout_ms: int, job_record: tuple[int, int, bytes] | None = None) -> None: ...

class EventLogSegment:
    """The result of scanning one segment."""

    @property
    def base(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def batches(self) -> int: ...

    @property
    def records(self) -> int: ...

    @property
    def largest_ms(self) -> int: ...

    @property
    def append_ms(self) -> int: ...

    @property
    def has_header(self) -> bool: ...

    @property
    def is_torn(self) -> bool: ...

    @property
    def bad(self) -> list[tuple[int, int, int, int]]:
        """Damaged ranges as (begin offset, end offset, first byte, end byte)."""

class EventLogCounts:
    """Counts of one partition handle."""

    @property
    def torn_tails(self) -> int: ...

    @property
    def torn_bytes(self) -> int: ...

    @property
    def bad_records(self) -> int: ...

    @property
    def recoveries(self) -> int: ...

    @property
    def syncs(self) -> int: ...

    @property
    def sync_us(self) -> int: ...

class EventLogSettings:
    """Where a partition lies and how it is written."""

    def __init__(self, stream: str, folder: str | bytes | os.PathLike[str], log: int, partition: int, partitions: int, durability: str, segment_bytes: int, segment_age_ms: int, retain_bytes: int, retain_ms: int) -> None: ...

class EventLogPartition:
    """One partition of an event log. Concurrent."""

    def __init__(self, settings: EventLogSettings) -> None: ...

    def append(self, values: Sequence[bytes | bytearray | memoryview], keys: Sequence[bytes | bytearray | memoryview], times_ms: Sequence[int], producer: int = 0, owner: int = 0, sequence: int = 0) -> int:
        """
        Append one batch and return its base offset. Readers that wait are not notified.
        """

    def sync(self, end: int) -> None:
        """Wait until the disk has all offsets below ``end``."""

    def refresh(self) -> None: ...

    def take_producer(self, producer: int) -> int: ...

    def last_sequence(self, producer: int) -> int: ...

    def retain(self, now_ms: int) -> int: ...

    def trim(self, offset: int) -> int: ...

    def roll(self) -> None: ...

    def verify(self) -> list[EventLogSegment]: ...

    @staticmethod
    def repair(settings: EventLogSettings) -> list[str]: ...

    def segments(self) -> list[int]: ...

    def counts(self) -> EventLogCounts: ...

    @property
    def first(self) -> int: ...

    @property
    def visible_end(self) -> int: ...

    @property
    def written_end(self) -> int: ...

    @property
    def durable_end(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def largest_ms(self) -> int: ...

    @property
    def append_ms(self) -> int: ...

    @property
    def has_failed(self) -> bool: ...

class EventLogWriter:
    """Collects records per partition and appends batches. Concurrent."""

    def __init__(self, partitions: Sequence[EventLogPartition], wake_path: str | bytes | os.PathLike[str], linger_ms: int, interval_ms: int, batch_bytes: int, batch_records: int, buffer_bytes: int) -> None: ...

    def write(self, value: bytes | bytearray | memoryview, key: bytes | bytearray | memoryview, time_ms: int, partition: int | None = None) -> None: ...

    def flush(self) -> None: ...

    def append(self, partition: int, values: Sequence[bytes | bytearray | memoryview], keys: Sequence[bytes | bytearray | memoryview], times_ms: Sequence[int], producer: int = 0, owner: int = 0, sequence: int = 0) -> int:
        """Append one batch by itself and return its base offset."""

    def stop(self) -> None: ...

    @property
    def waiting_bytes(self) -> int: ...

    @property
    def written_records(self) -> int: ...

    @property
    def written_bytes(self) -> int: ...

    @property
    def refused_appends(self) -> int: ...

class EventLogChunk:
    """Records of one partition with consecutive offsets."""

    @property
    def partition(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def records(self) -> Records:
        """The values."""

    def __len__(self) -> int: ...

    @property
    def keys(self) -> list[bytes]: ...

    @property
    def times_ms(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def append_ms(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

class EventLogReader:
    """
    Reads partitions in turn. Used by one thread; ``interrupt`` may come from another.
    """

    def __init__(self, partitions: Sequence[EventLogPartition], wake_path: str | bytes | os.PathLike[str], skips_lost: bool = False, skips_corrupt: bool = False) -> None: ...

    def read(self, most_records: int, wait_ms: int) -> EventLogChunk | None:
        """
        Return the next records of any partition; None after ``wait_ms`` without one.
        """

    def read_partition(self, index: int, most_records: int, limit: int) -> EventLogChunk | None:
        """
        Return the next records of one partition below the offset ``limit``; None at its end.
        """

    def interrupt(self) -> None: ...

    def seek(self, index: int, offset: int, epoch: int = 0) -> None: ...

    def find_time(self, index: int, time_ms: int) -> int: ...

    def next_append_ms(self, index: int) -> int | None: ...

    def next(self, index: int) -> int: ...

    def epoch(self, index: int) -> int: ...

    def lost(self, index: int) -> int: ...

    def corrupt_batches(self, index: int) -> int: ...

    def corrupt_records(self, index: int) -> int: ...

def event_log_partition(key: bytes | bytearray | memoryview, partitions: int) -> int:
    """Return the partition of a key."""

class Joiner:
    """State and rules of a join; rows wait inside until they are taken."""

    def __init__(self, tasks: Sequence[Sequence[int]], window: int, horizon: int, orphan_hold: int, skew: int, late: str, is_fast: bool, sample_rate: float, samples_by_weight: bool, salt: int, max_codes: int, max_orphans: int, spill_folder: str | bytes | os.PathLike[str] = '') -> None: ...

    def add_impression(self, time: int, key: bytes, item: int, payload: bytes, event_id: int, ingest_time: int) -> None: ...

    def add_action(self, time: int, key: bytes, item: int, code: int, ingest_time: int = 0) -> None: ...

    def join(self, records: Records, first: int, keys: list[bytes] | None, times: numpy.typing.NDArray[numpy.int64] | None, ingest: numpy.typing.NDArray[numpy.int64], future: int, max_bytes: int) -> int:
        """
        Join Examples from `first` on and return the place of the first record that needs another parser.
        """

    def take_largest_time(self) -> int | None:
        """
        Return the largest min(event time, ingest time) since the last call; None without events.
        """

    def advance(self, watermark: int) -> None:
        """Raise the watermark."""

    def spill(self, memory: int) -> None:
        """Move state to disk until at most `memory` bytes are left."""

    def close_oldest(self, count: int) -> int:
        """Close the oldest windows early and return their number."""

    def drop_oldest_held(self, count: int) -> int:
        """Drop the oldest waiting actions."""

    def save(self, path: str | bytes | os.PathLike[str]) -> None:
        """Write the state to a file and sync it."""

    def restore(self, path: str | bytes | os.PathLike[str], memory: int) -> None:
        """Fill an empty joiner from a file of `save`."""

    def take_rows(self) -> list[tuple[Any, ...]]:
        """Return the waiting rows as tuples."""

    def take_examples(self, join_time: int, most_bytes: int) -> tuple[list[bytes], list[bytes], list[int]]:
        """
        Return waiting rows, about `most_bytes` at most, as three lists: keys, Examples, times.
        """

    @property
    def pending_rows(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def watermark(self) -> int | None: ...

    @property
    def counters(self) -> dict[str, int]: ...

    @property
    def open_impressions(self) -> int: ...

    @property
    def held_actions(self) -> int: ...

    @property
    def entries(self) -> int: ...

    @property
    def memory(self) -> int: ...

    @property
    def held_memory(self) -> int: ...

    @property
    def spilled_bytes(self) -> int: ...

class OnnxSession:
    """A dense program with one set of weights, run without Python."""

    def __init__(self, library: str, path: str, weights: Sequence[tuple[str, int, Sequence[int], bytes]]) -> None: ...

def onnx_version(library: str) -> str:
    """
    Open ONNX Runtime, check it with a tiny program, and return its version.
    """

class ServedModel:
    """One version, as the native request path scores it."""

    def __init__(self, name: str, version: int, layouts: Layouts, parsers: Sequence[tuple[RowParser, Assembler]], id_places: Sequence[int], layout_widths: Sequence[int], inputs: Sequence[tuple[str, str, int, Sequence[int]]], outputs: Sequence[tuple[str, Sequence[int]]], signatures: Mapping[str, tuple[Sequence[int], str]]) -> None: ...

    def lock(self) -> None:
        """Wait for current batches; keep others out."""

    def unlock(self) -> None:
        """Let batches in again."""

    def show(self, tables: Sequence[Table], dense: OnnxSession | None, is_whole: bool) -> None:
        """Replace rows and weights; the caller holds the lock."""

    def score(self, records: Records, input: str, outputs: Sequence[int]) -> tuple[int, list[numpy.typing.NDArray[numpy.float32]]]:
        """Return the rows and the flat values of each output."""

class PythonCall:
    """A request that the native path leaves to Python."""

    @property
    def api(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> dict[str, str]: ...

    @property
    def body(self) -> bytes: ...

    @property
    def is_compressed(self) -> bool: ...

    @property
    def is_logged(self) -> bool | None: ...

    @property
    def is_wanted(self) -> bool: ...

    @property
    def time_left_s(self) -> float: ...

    def answer(self, status: int, body: bytes, content_type: str = 'application/json', headers: Sequence[tuple[str, str]] = [], code: int = 0, message: str = '') -> None:
        """Answer the client; only the first answer counts."""

def check_transport(needs_http2: bool, needs_tls: bool) -> None:
    """Check that the libraries of the transport can be opened."""

def release_freed_memory() -> None:
    """Return freed memory of the heap to the system."""

class ScoreService:
    """Queue, model threads and routes of the native request path."""

    def __init__(self, threads: int, max_rows: int, wait_s: float, max_queued_rows: int, max_queued_bytes: int, bounds_us: Sequence[int], max_values: int) -> None: ...

    def set_routes(self, routes: Mapping[str, tuple[Sequence[tuple[int, ServedModel | None, float, bool]], Mapping[str, int]]]) -> None:
        """
        Replace the versions by model name: (version, model or None for Python, share to log, has a canary).
        """

    def next_call(self, timeout_s: float) -> PythonCall | None:
        """Return the next request for Python, or None."""

    def take_errors(self) -> list[str]:
        """Return unexpected errors since the last call, for the log."""

    def stats(self) -> dict[str, Any]:
        """Return all counts so far."""

    def queued(self) -> tuple[int, int]:
        """Return the queued requests and rows."""

    def close(self, drain_s: float) -> None:
        """Answer the queue for a while, fail the rest, stop the threads."""

class ScoreServer:
    """Listens for REST and gRPC, without Python on the way of a score."""

    def __init__(self, service: ScoreService, host: str, rest_port: int | None, grpc_port: int | None, io_threads: int, max_body: int, max_pending: int, max_connections: int, idle_s: float, read_s: float, answer_s: float, token: str, admin_token: str, cert_file: str | bytes | os.PathLike[str], key_file: str | bytes | os.PathLike[str], ca_file: str | bytes | os.PathLike[str]) -> None: ...

    @property
    def rest_port(self) -> int: ...

    @property
    def grpc_port(self) -> int: ...

    @property
    def connections(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    @property
    def resets(self) -> int: ...

    @property
    def accept_pauses(self) -> int: ...

    def close(self, drain_s: float) -> None:
        """Stop listening, drain, close all connections."""
