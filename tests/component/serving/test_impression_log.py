"""``serve --log-requests``: scored records reach a stream with request key, version and cut; requests never wait."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from monolith._native import EventLogReader
from monolith.core.errors import AppendRefused, ConfigError, InvalidRequest
from monolith.data.records.messages import LINE_ID
from monolith.data.sources.base import Sink
from monolith.data.sources.event_log.topic import Topic
from monolith.serving.api import impression_log, messages
from monolith.serving.api.impression_log import REQUEST_KEY, ImpressionLog, ScoredRecords, stamp_record
from monolith.stream.hashes import draw_uniform
from monolith.stream.line_id import MESSAGES
from monolith.testing.eventually import eventually
from monolith.testing.fakes.linear_model import example, example_batch, instance
from monolith.testing.processes.linear_server import LinearServer


def logged(folder: Path) -> list[tuple[bytes, bytes, int]]:
    topic = Topic.open(folder, "impressions")
    reader = EventLogReader(topic.open_partitions(), topic.wake_path)
    records: list[tuple[bytes, bytes, int]] = []
    while (chunk := reader.read(100, 0)) is not None:
        records += [(key, chunk.records[i], int(chunk.times_ms[i])) for i, key in enumerate(chunk.keys)]
    return records


def post(served: LinearServer, record: bytes, key: str | None = None) -> str:
    body = json.dumps({"instances": [{"examples": {"b64": base64.b64encode(record).decode()}}]}).encode()
    headers = {} if key is None else {REQUEST_KEY: key}
    request = urllib.request.Request(
        f"http://{served.server.rest_address}/v1/models/m:predict", body, headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.headers[REQUEST_KEY])


def test_scored_records_reach_the_log_with_the_key_of_the_response(
    serve: Callable[..., LinearServer], tmp_path: Path
) -> None:
    served = serve(log_requests=f"log://{tmp_path}/impressions")
    made = post(served, example(user=7))
    assert post(served, example(user=8), "mine") == "mine"
    with grpc.insecure_channel(served.server.address) as channel:
        request = messages.PredictRequest()
        request.model_spec.name = "m"
        request.inputs["examples"].dtype = 7  # DT_STRING
        request.inputs["examples"].string_val.append(example(user=9))
        request.inputs["examples"].tensor_shape.dim.add(size=1)
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        _, call = predict.with_call(request.SerializeToString(), timeout=60)
        told = dict(call.trailing_metadata())[REQUEST_KEY.lower()]
    served.server.stop()
    records = logged(tmp_path)
    assert [key for key, _, _ in records] == [made.encode(), b"mine", told.encode()]
    for user, (key, value, time_ms) in zip((7, 8, 9), records, strict=True):
        message: Any = MESSAGES.Example.FromString(value)
        assert message.named_feature[0].feature.fid_v2_list.value[0] == user
        line = message.line_id
        assert (line.request_key, line.event_time_ms, line.model_version, line.cut) == (key, time_ms, 1, 0)
        assert line.event_kind == 0


def test_failed_requests_and_table_calls_are_not_logged(serve: Callable[..., LinearServer], tmp_path: Path) -> None:
    served = serve(log_requests=f"log://{tmp_path}/impressions")
    with served.client() as client:
        with pytest.raises(InvalidRequest):
            client.score(b"\xff")
        client.predict({"ids": [7]}, signature="lookup")
    served.server.stop()
    assert logged(tmp_path) == []


def test_an_invalid_stream_stops_the_server_before_it_starts(serve: Callable[..., LinearServer]) -> None:
    with pytest.raises(ConfigError, match="expected log://PATH/TOPIC"):
        serve(log_requests="clicks")


class SlowSink(Sink):
    """Takes a message when ``gate`` is open; refuses every message that starts with "full"."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[tuple[bytes, bytes | None, int | None]] = []

    def write(self, message: bytes, key: bytes | None = None, time_ms: int | None = None) -> None:
        assert self.gate.wait(60)
        if key == b"full":
            raise AppendRefused("the disk is full")
        self.written.append((message, key, time_ms))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_a_slow_or_full_stream_drops_records_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impression_log, "_MAX_WAITING", 2)
    outcomes: Counter[str] = Counter()
    sink = SlowSink()
    log = ImpressionLog(sink, 1.0, lambda outcome: outcomes.update([outcome]))
    for _ in range(10):
        log.add(b"key", "example", [example(user=1)], 3, 4)  # does not wait: the sink holds the thread
    assert outcomes["impression_dropped"] >= 7
    sink.gate.set()
    log.add(b"key", None, [], 3, 4)
    log.close()
    assert outcomes["impression_written"] == 10 - outcomes["impression_dropped"]
    assert outcomes["impression_unsupported"] == 1
    refused: Counter[str] = Counter()
    sink.written.clear()
    again = ImpressionLog(sink, 1.0, lambda outcome: refused.update([outcome]))
    again.add(b"full", "example", [example(user=1)], 3, 4)
    again.add(b"key", "example", [example(user=1), b"\xff"], 3, 4)
    again.close()
    assert refused == {"impression_dropped": 2, "impression_written": 1}


def test_large_records_that_wait_for_a_slow_stream_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    record = example(user=1)
    monkeypatch.setattr(impression_log, "_MAX_WAITING_BYTES", 3 * len(record))
    outcomes: Counter[str] = Counter()
    sink = SlowSink()
    log = ImpressionLog(sink, 1.0, lambda outcome: outcomes.update([outcome]))
    for _ in range(10):
        log.add(b"key", "example", [record], 3, 4)
    assert outcomes == {"impression_dropped": 7}
    sink.gate.set()
    eventually(lambda: outcomes["impression_written"] == 3 and not log._bytes, timeout_s=60)
    log.add(b"key", "example", [record] * 5, 3, 4)  # an empty queue takes any request
    log.close()
    assert outcomes == {"impression_dropped": 7, "impression_written": 8}


def test_lost_brokers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sink = SlowSink()
    sink.gate.set()
    log = ImpressionLog(sink, 1.0, lambda outcome: None)
    for key in (b"full", b"full", b"full", b"key", b"full"):
        log.add(key, "example", [example(user=1)], 3, 4)
    log.close()
    assert caplog.text.count("impression not written") == 2


def test_a_share_of_the_requests_is_chosen_by_their_keys() -> None:
    sink = SlowSink()
    sink.gate.set()
    log = ImpressionLog(sink, 0.25, lambda outcome: None)
    keys = [b"request-%d" % number for number in range(400)]
    for key in keys:
        log.add(key, "instance", [instance(5)], 1, 0)
    log.close()
    assert [key for _, key, _ in sink.written] == [key for key in keys if draw_uniform(key, 0) < 0.25]
    assert 60 < len(sink.written) < 140


def test_a_batch_keeps_its_rows_and_a_key_inside_a_record_has_precedence() -> None:
    scored = ScoredRecords(b"server", "example_batch", (), 5, 6, 1000)
    key, value, time_ms = stamp_record(example_batch([1, 2]), scored)
    batch: Any = MESSAGES.ExampleBatch.FromString(value)
    lines = next(each for each in batch.named_feature_list if each.name == LINE_ID)
    stamped = [MESSAGES.LineId.FromString(each.bytes_list.value[0]) for each in lines.feature]
    assert [(line.request_key, line.event_time_ms, line.cut) for line in stamped] == [(b"server", 1000, 6)] * 2
    assert (key, time_ms) == (b"server", 1000)
    mine: Any = MESSAGES.Example()
    mine.line_id.request_key = b"mine"
    mine.line_id.event_time_ms = 42
    assert stamp_record(mine.SerializeToString(), ScoredRecords(b"server", "example", (), 5, 6, 1000))[::2] == (
        b"mine",
        42,
    )


def test_a_key_that_is_too_long_is_refused() -> None:
    log = ImpressionLog(SlowSink(), 1.0, lambda outcome: None)
    with pytest.raises(InvalidRequest, match="257 bytes, expected at most 256"):
        log.make_key("x" * 257)
    assert len(log.make_key("")) == 32
    log.close()
