from __future__ import annotations

from pathlib import Path

import pytest

from monolith.compat.tasks.vocabulary import read_vocabulary, vocabulary_sizes
from monolith.core.errors import ConfigError


def written(folder: Path, text: str) -> str:
    path = folder / "vocabulary.tsv"
    path.write_text(text)
    return str(path)


def test_counts_are_read_and_lines_without_a_slot_number_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, "slot\tcount\n1\t10\n\n 2 \t20\nbias\t5\n-3\t7\n")
    assert read_vocabulary(path) == {1: 10, 2: 20}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\t2\n1 5\n", r"line 2: 1 fields in '1 5'; write slot<TAB>count"),
        ("1\t2\t3\n", "line 1: 3 fields"),
        ("1\tmany\n", "line 1: slot 1 has the count 'many'"),
        ("1\t-4\n", "slot 1 has the count '-4'"),
        ("1\t4\n1\t4\n", "line 2: slot 1 is there twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_vocabulary(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.tsv' cannot be read"):
        read_vocabulary(str(tmp_path / "nothing.tsv"))


def test_sizes_are_overridden_for_all_then_for_single_slots_then_moved() -> None:
    counts = {1: 10, 2: 20}
    assert vocabulary_sizes(counts) == counts
    assert vocabulary_sizes(counts, size_per_slot=7) == {1: 7, 2: 7}
    assert vocabulary_sizes(counts, size_per_slot=7, custom_sizes={2: 9, 5: 1}) == {1: 7, 2: 9}
    assert vocabulary_sizes(counts, custom_sizes={2: 9}, offset=3) == {1: 13, 2: 12}


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="slot 4 has the vocabulary size 0"):
        vocabulary_sizes({4: 5}, offset=-5)
