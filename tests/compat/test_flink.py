"""The joiner as a Flink job gives the rows of the reference joiner, also after a failure and a restart."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from join_events import START_MS, numbered_events
from monolith.stream import EventParser, JoinSettings, RecordPlace, ReferenceJoiner, RowAssembler
from monolith.stream.events import END_OF_TIME, Impression
from monolith.stream.parsing import DeadLetter

PYTHON = os.environ.get("FLINK_PYTHON")
SETTINGS: dict[str, Any] = {"window_ms": 2_000, "out_of_order_ms": 1_000, "future_ms": 10**13}
LONGEST_S = 300

pytestmark = pytest.mark.skipif(PYTHON is None, reason="FLINK_PYTHON is not set; run `make test-flink`")


def expect(values: list[bytes], settings: JoinSettings) -> Counter[str]:
    """Return the lines of all rows and dead letters by the reference joiner, which gets its watermark at the end."""
    parser, core, assembler = EventParser(settings), ReferenceJoiner(settings), RowAssembler()
    lines, rows = [], []
    for offset, value in enumerate(values):
        events = parser.parse(value, RecordPlace("events", 0, offset), ingest_time_ms=START_MS)
        if isinstance(events, DeadLetter):
            lines.append(f"dead {events.reason} {value.hex()}")
            continue
        for event in events:
            rows += core.on_impression(event) if isinstance(event, Impression) else core.on_action(event)
    rows += core.on_watermark(END_OF_TIME)
    return Counter([*lines, *(f"row {identity(assembler.assemble(row).value)}" for row in rows)])


def identity(value: bytes) -> str:
    """Return the bytes of a row as text, without the time of its ingestion."""
    from monolith.stream.line_id import MESSAGES

    example: Any = MESSAGES.Example.FromString(value)
    example.line_id.ClearField("ingest_time_ms")
    return str(example.SerializeToString(deterministic=True).hex())


@pytest.mark.parametrize("fails", [False, True], ids=["without failures", "with a failure and a restart"])
def test_a_flink_job_emits_each_row_of_the_reference_once(
    tmp_path: Path, beside: dict[str, str], seed: int, fails: bool
) -> None:
    assert PYTHON is not None
    values = [value for _, value, _ in numbered_events(1_000, seed)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "records").write_text("".join(f"{value.hex()}\n" for value in values))
    command = [PYTHON, Path(__file__).with_name("flink_side.py"), tmp_path / "in" / "records", tmp_path / "out"]
    command += [json.dumps(SETTINGS), *([str(tmp_path / "failed")] if fails else [])]
    done = subprocess.run(command, env=beside, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "failed").exists() == fails
    lines = Counter(
        f"row {identity(bytes.fromhex(line[4:]))}" if line.startswith("row ") else line
        for line in (tmp_path / "out").read_text().splitlines()
    )
    expected = expect(values, JoinSettings(**SETTINGS))
    assert sum(line.startswith("dead ") for line in expected) > 0
    assert lines == expected
