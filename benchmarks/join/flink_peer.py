"""The same join as a PyFlink job on this machine; runs in the interpreter that has PyFlink.

Usage: flink_peer.py RECORDS WINDOW_MS OUT_OF_ORDER_MS. RECORDS has one record per line, in hexadecimal. Prints the
seconds of the job.
"""

from __future__ import annotations

import sys
import time

from pyflink.common import Configuration, Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.datastream.connectors.base import Sink  # type: ignore[import-not-found]
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat  # type: ignore[import-not-found]
from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]

from monolith.stream.flink import join_stream
from monolith.stream.settings import JoinSettings


def main(records: str, window_ms: str, out_of_order_ms: str) -> None:
    configuration = Configuration()
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("parallelism.default", "1")
    configuration.set_string("pipeline.object-reuse", "true")
    configuration.set_string("python.state.cache-size", "1000000")  # else each event of an older key asks the JVM
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), records).build()
    values = env.from_source(files, WatermarkStrategy.no_watermarks(), "records").map(
        bytes.fromhex, Types.PICKLED_BYTE_ARRAY()
    )
    settings = JoinSettings(window_ms=int(window_ms), out_of_order_ms=int(out_of_order_ms), future_ms=10**13)
    rows, _ = join_stream(values, settings)
    discarding = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    rows.sink_to(Sink(discarding))
    started_s = time.monotonic()
    env.execute("join")
    print(time.monotonic() - started_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
