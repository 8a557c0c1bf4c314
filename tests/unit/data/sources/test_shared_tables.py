"""Files of columns from a shared list: every row is read once, even if a worker stops at any position and resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.parquet import ParquetSource
from monolith.data.sources.shared_tables import SharedTablesSource
from monolith.data.sources.work_list import FilesReassigned, MemoryWorkList


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    names = [str(tmp_path / f"{number}.parquet") for number in range(4)]
    for number, name in enumerate(names):
        rows = 0 if number == 1 else 20
        frame = pa.table({"user": pa.array(range(100 * number, 100 * number + rows), pa.int64())})
        pq.write_table(frame, name, row_group_size=9)
    return names


def by_seven(path: str) -> ParquetSource:
    return ParquetSource([path], batch_rows=7)


def lots(source: SharedTablesSource, most: int | None = None) -> list[tuple[str, int]]:
    """Read records to the end, or so many; each by its file and its first row."""
    found: list[tuple[str, int]] = []
    while (most is None or len(found) < most) and (lot := source.read()) is not None:
        found.append((lot.source, int(lot.offsets[0])))
    return found


def expected(paths: list[str]) -> list[tuple[str, int]]:
    return [(path, row) for number, path in enumerate(paths) if number != 1 for row in (0, 7, 9, 16, 18)]


def test_workers_share_the_files_and_every_row_comes_once(paths: list[str]) -> None:
    work_list = MemoryWorkList(paths)
    one, other = (SharedTablesSource(work_list, name, by_seven) for name in ("a", "b"))
    found = [*lots(one, 1), *lots(other, 1), *lots(one, 6), *lots(other), *lots(one)]
    assert sorted(found) == expected(paths)
    assert set(work_list.state()["done"]) == set(paths)
    one.close()
    other.close()
    assert one.read() is None


@pytest.mark.parametrize("cut", range(16))
def test_a_worker_resumes_at_every_position_even_with_a_newer_list(paths: list[str], cut: int) -> None:
    work_list = MemoryWorkList(paths)
    first = SharedTablesSource(work_list, "a", by_seven)
    before = lots(first, cut)
    place = json.loads(json.dumps(first.position()))
    later = json.loads(json.dumps(work_list.state()))
    if cut % 2:  # rows read after the position are dropped
        lots(first, 3)
        later = json.loads(json.dumps(work_list.state()))
    first.close()

    restored = MemoryWorkList([])
    restored.restore(later)
    second = SharedTablesSource(restored, "a", by_seven)
    second.resume(place)
    assert sorted([*before, *lots(second)]) == expected(paths)
    second.close()


def test_a_file_that_another_worker_has_by_now_is_left_to_it(paths: list[str]) -> None:
    work_list = MemoryWorkList(paths)
    first = SharedTablesSource(work_list, "a", by_seven)
    lots(first, 2)
    place = first.position()
    first.close()
    assert work_list.requeue("a") == paths[:1]
    other = SharedTablesSource(work_list, "b", by_seven)
    assert lots(other, 1) == [(paths[0], 0)]
    again = SharedTablesSource(work_list, "a", by_seven)
    with pytest.raises(FilesReassigned):
        again.resume(place)
    fresh = SharedTablesSource(work_list, "a", by_seven)
    assert paths[0] not in {path for path, _ in lots(fresh)}
    for source in (other, again, fresh):
        source.close()


def test_invalid_arguments_are_refused(paths: list[str]) -> None:
    with pytest.raises(ConfigError, match="worker is not set"):
        SharedTablesSource(MemoryWorkList(paths), "", by_seven)
    source = SharedTablesSource(MemoryWorkList(paths), "a", by_seven)
    with pytest.raises(DataError, match="is not the position of shared files of columns"):
        source.resume({"file_index": 1})
    source.read()
    with pytest.raises(ConfigError, match="before the first read"):
        source.resume({"open": None, "finished": 0})
    source.close()
