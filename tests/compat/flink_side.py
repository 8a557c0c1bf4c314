"""Runs the joiner as a Flink job, in the interpreter that has PyFlink: reads records as hexadecimal lines, writes rows.

Usage: flink_side.py INPUT OUTPUT SETTINGS [FAILURE]. SETTINGS is a JSON object of ``JoinSettings``. The first attempt
of the job fails in the middle of the input if FAILURE names a file that does not exist yet.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyflink.common import Configuration, Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat  # type: ignore[import-not-found]

from monolith.stream.flink import join_stream
from monolith.stream.settings import JoinSettings


class FailOnce:
    """Decodes a line; raises once, at the line that begins the second half."""

    def __init__(self, line: str, marker: Path) -> None:
        self._line = line
        self._marker = marker

    def __call__(self, line: str) -> bytes:
        time.sleep(0.002)  # checkpoints come between the records
        if line == self._line and not self._marker.exists():
            self._marker.touch()
            raise RuntimeError("the first attempt fails here")
        return bytes.fromhex(line)


def main(source: str, output: str, settings_text: str, marker: str = "") -> None:
    configuration = Configuration()
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("parallelism.default", "2")
    if marker:
        configuration.set_string("execution.checkpointing.interval", "100ms")
        configuration.set_string("restart-strategy.type", "fixed-delay")
        configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
        configuration.set_string("restart-strategy.fixed-delay.delay", "100ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    lines = Path(source).read_text().splitlines()
    decode = FailOnce(lines[len(lines) // 2], Path(marker)) if marker else bytes.fromhex
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build()
    records = env.from_source(files, WatermarkStrategy.no_watermarks(), "records").map(
        decode, Types.PICKLED_BYTE_ARRAY()
    )
    rows, dead = join_stream(records, JoinSettings(**json.loads(settings_text)))
    merged = rows.map(lambda row: "row " + row.hex(), Types.STRING()).union(
        dead.map(lambda letter: f"dead {json.loads(letter[0])['reason']} {letter[1].hex()}", Types.STRING())
    )
    with merged.execute_and_collect() as results:
        Path(output).write_text("".join(f"{line}\n" for line in results))


if __name__ == "__main__":
    main(*sys.argv[1:])
