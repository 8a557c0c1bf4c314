"""Streams by URL: ``log://PATH/TOPIC?OPTIONS`` and ``kafka://SERVERS/TOPIC?OPTIONS``.

``parse_url`` reads and checks a URL, ``open_source`` and ``open_sink`` open the stream that it names. A relative path
has two slashes (``log://runs/events/clicks``), an absolute one has three (``log:///data/events/clicks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from monolith.core.errors import ConfigError
from monolith.data.records.framing import Framing
from monolith.data.sources.base import RecordKind, Sink, Source
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.kafka.client import read_settings
from monolith.data.sources.kafka.start_offsets import parse_start

__all__ = ["StreamUrl", "is_stream_url", "open_sink", "open_source", "parse_partitions", "parse_url", "sample_url"]

_SCHEMES = ("log://", "kafka://")


@dataclass(frozen=True, slots=True)
class StreamUrl:
    """The parts of a stream's URL."""

    kind: Literal["log", "kafka"]
    place: str
    """Folder of the topics, or the brokers as ``host:port,host:port``."""
    topic: str
    """Name of the topic; several for Kafka, separated by commas."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options after the question mark."""


def is_stream_url(text: str) -> bool:
    """Return True if the text begins like the URL of a stream."""
    return text.startswith(_SCHEMES)


def parse_url(text: str) -> StreamUrl:
    """Return the parts of a URL.

    Raises:
        ConfigError: The URL names no place or no topic, or an option twice.

    >>> parse_url("log:///data/events/clicks?group=trainer").topic
    'clicks'
    """
    rule = "expected log://PATH/TOPIC or kafka://HOST:PORT/TOPIC"
    kind, _, rest = text.partition("://")
    if kind not in ("log", "kafka"):
        raise ConfigError(f"url is {text!r}, {rule}")
    path, _, query = rest.partition("?")
    place, _, topic = path.rstrip("/").rpartition("/")
    if not place and rest.startswith("/"):
        place = "/"
    if not place or not topic:
        raise ConfigError(f"url is {text!r}, {rule}")
    pairs = parse_qsl(query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"url is {text!r}, expected each option once")
    return StreamUrl("log" if kind == "log" else "kafka", unquote(place), unquote(topic), dict(pairs))


def sample_url(text: str) -> str:
    """Return the URL of all records that a log holds now, without a group: to look at a stream before it is read."""
    parts = parse_url(text)
    options = {name: value for name, value in parts.options.items() if name in ("partitions", "on_corrupt")}
    query = "&".join(f"{name}={value}" for name, value in {**options, "until_end": "true"}.items())
    return f"{parts.kind}://{parts.place.rstrip('/')}/{parts.topic}?{query}"


def parse_partitions(text: str) -> list[int]:
    """Return the partitions that a text such as ``0-3,7`` names.

    Raises:
        ConfigError: The text is invalid.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or int(last or first) - int(first) not in range(4096)
        ):
            raise ConfigError(f"partitions is {text!r}, expected numbers and ranges such as '0-3,7'")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def open_source(
    url: str | StreamUrl,
    record: RecordKind,
    *,
    framing: Framing | None = None,
    on_corrupt: Literal["raise", "skip"] = "raise",
    shard: tuple[int, int] = (0, 1),
    **defaults: Any,
) -> Source:
    """Open the source that a URL names.

    Options of a log: group, start, partitions, poll_records, idle_end_s, until_end, on_lost, on_corrupt. Options of
    Kafka: group (needed), start, poll_records, idle_end_s, on_corrupt, config (a file of librdkafka settings).

    Args:
        url: The URL.
        record: The message type of the records.
        framing: None if a message is one bare record.
        on_corrupt: "raise" on a record that cannot be parsed, or "skip" it; an option of the URL replaces it.
        shard: (index, count): the worker's share of a log's partitions. Kafka shares partitions by the group.
        defaults: Keyword arguments of the source; options of the URL replace them.

    Raises:
        ConfigError: The URL or an option is invalid, or the topic does not exist.
    """
    parts = parse_url(url) if isinstance(url, str) else url
    options = {"on_corrupt": on_corrupt, **{name: value for name, value in defaults.items() if value is not None}}
    options |= _parse_options(parts, _LOG_OPTIONS if parts.kind == "log" else _KAFKA_OPTIONS)
    if parts.kind == "kafka":
        from monolith.data.sources.kafka.source import KafkaSource

        if "group" not in options:
            raise ConfigError(f"url of topic {parts.topic!r} has no group, expected kafka://SERVERS/TOPIC?group=NAME")
        return KafkaSource(parts.place, parts.topic.split(","), record=record, framing=framing, **options)
    topic = Topic.open(parts.place, parts.topic)
    numbers = options.pop("partitions", range(topic.settings.partitions))
    share = [number for position, number in enumerate(numbers) if position % shard[1] == shard[0]]
    if not share:
        raise ConfigError(
            f"topic {topic.name!r} has {len(numbers)} partitions for {shard[1]} workers, expected one for each; "
            "start fewer workers, or create a topic with more partitions"
        )
    return EventLogSource(topic, record, framing=framing, partitions=share, **options)


def open_sink(url: str | StreamUrl, **options: Any) -> Sink:
    """Open the sink that a URL names; create the topic of a log where it is absent.

    Options of a log: partitions, durability, retain_bytes, retain_s (settings of a new topic), linger_ms. Options of
    Kafka: config (a file of librdkafka settings).

    Args:
        url: The URL.
        options: Keyword arguments of ``LogWriter`` or ``KafkaWriter``.

    Raises:
        ConfigError: The URL or an option is invalid.
    """
    parts = parse_url(url) if isinstance(url, str) else url
    if parts.kind == "kafka":
        from monolith.data.sources.kafka.writer import KafkaWriter

        return KafkaWriter(parts.place, parts.topic, **{**options, **_parse_options(parts, {"config": read_settings})})
    given = _parse_options(parts, _SINK_OPTIONS)
    writer_options = {name: given.pop(name) for name in ("linger_ms",) if name in given}
    topic = Topic.create(parts.place, parts.topic, TopicSettings(**given) if given else None)
    return LogWriter(topic, **{**options, **writer_options})


def _parse_options(parts: StreamUrl, parsers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parts.options.items():
        if name not in parsers:
            raise ConfigError(
                f"option {name!r} of topic {parts.topic!r} is unknown, expected one of {', '.join(sorted(parsers))}"
            )
        try:
            options[name] = parsers[name](text)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"option {name} of topic {parts.topic!r} is {text!r}: {error}") from error
    return options


def _flag(text: str) -> bool:
    if text.lower() not in ("", "0", "1", "true", "false"):
        raise ValueError("expected true or false")
    return text.lower() in ("", "1", "true")


_LOG_OPTIONS: dict[str, Callable[[str], Any]] = {
    "group": str,
    "start": parse_start,
    "partitions": parse_partitions,
    "poll_records": int,
    "idle_end_s": float,
    "until_end": _flag,
    "on_lost": str,
    "on_corrupt": str,
}
_KAFKA_OPTIONS: dict[str, Callable[[str], Any]] = {
    "group": str,
    "start": parse_start,
    "poll_records": int,
    "idle_end_s": float,
    "on_corrupt": str,
    "config": read_settings,
}
_SINK_OPTIONS: dict[str, Callable[[str], Any]] = {
    "partitions": int,
    "durability": str,
    "retain_bytes": int,
    "retain_s": float,
    "segment_bytes": int,
    "linger_ms": int,
}
