"""``JoinTopics``: the input and output topics of a join, opened by URL for one partition group at a time.

Every input has the same number of partitions. Group g reads partition g of each input, and writes partition g of the
output and of the dead letters. Topics of the event log are created if absent; those of Kafka must exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.kafka.client import read_settings
from monolith.data.sources.urls import StreamUrl, parse_url
from monolith.stream.parsing import InputRecord
from monolith.stream.runtime.event_log import LogInput, LogSink
from monolith.stream.runtime.group import GroupOptions, JoinGroup
from monolith.stream.runtime.kafka import KafkaInput, KafkaSink, count_partitions
from monolith.stream.runtime.ports import JoinInput, JoinSink
from monolith.stream.runtime.state_folder import StateFolder
from monolith.stream.settings import JoinSettings

__all__ = ["JoinTopics"]


class JoinTopics:
    """Topics of a join.

    Args:
        inputs: URLs of the input topics.
        output: URL of the topic of examples.
        dead: URL of the topic of dead letters; None is the output topic with ``.dead``.
        name: Name of the join: consumer group, producer and transaction ids.
        start: Where to begin without a snapshot.
        on_lost: "raise" if retention removed the next record, or continue at the "earliest" one.
        on_corrupt: "raise" on a damaged batch of an event log, or "skip" it and count its records as lost.

    Raises:
        ConfigError: A URL is invalid, an output is also an input or the other output, or the inputs differ in their
            number of partitions.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        output: str,
        dead: str | None = None,
        *,
        name: str = "join",
        start: Literal["earliest", "latest"] = "earliest",
        on_lost: Literal["raise", "earliest"] = "raise",
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        if not inputs:
            raise ConfigError("inputs is empty, expected at least one URL, such as log://data/events")
        self._inputs = [_check_options(parse_url(url)) for url in inputs]
        self._output = _check_options(parse_url(output))
        self._dead = _check_options(parse_url(dead)) if dead else _add_suffix(self._output)
        self._check_outputs()
        self._name = name
        self._start = start
        self._on_lost = on_lost
        self._on_corrupt = on_corrupt
        counts = {f"{each.place}/{each.topic}": _count_partitions(each) for each in self._inputs}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise ConfigError(f"inputs differ in partitions ({shown}), expected equal numbers; create a new topic")
        self.partitions: int = next(iter(counts.values()))
        for url in (self._output, self._dead):
            if url.kind == "log":
                Topic.create(url.place, url.topic, TopicSettings(partitions=self.partitions, durability="commit"))
            elif _count_partitions(url) != self.partitions:
                raise ConfigError(
                    f"topic {url.topic!r} has {_count_partitions(url)} partitions, expected {self.partitions} as the "
                    "inputs; create a new topic"
                )

    def make_group(
        self,
        partition: int,
        settings: JoinSettings,
        state: Path,
        *,
        record: InputRecord = "example",
        options: GroupOptions | None = None,
        take_over: bool = False,
        clock: Clock | None = None,
        on_point: Callable[[str], None] | None = None,
    ) -> JoinGroup:
        """Return the group of a partition.

        Raises:
            ClusterError: Another process owns the partition.
            ConfigError: The partition does not exist.
        """
        if not 0 <= partition < self.partitions:
            raise ConfigError(f"partition is {partition}, expected 0 to {self.partitions - 1}")
        folder = StateFolder(state / f"group-{partition:05d}", take_over=take_over)
        try:
            return JoinGroup(
                settings,
                [self._open_input(url, partition) for url in self._inputs],
                self._open_sink(self._output, partition),
                self._open_sink(self._dead, partition),
                folder,
                record=record,
                options=options,
                clock=clock,
                on_point=on_point,
            )
        except BaseException:
            folder.close()
            raise

    def _check_outputs(self) -> None:
        """Check that no output feeds the join again, and that the two outputs do not fence each other."""
        taken = {_identity(url): "an input" for url in self._inputs}
        for url, role, name in ((self._output, "the output", "--output"), (self._dead, "the dead letters", "--dead")):
            if (other := taken.get(_identity(url))) is not None:
                raise ConfigError(
                    f"topic of {role} is {url.topic!r}, which is also that of {other}, expected another topic; pass "
                    f"{name} with the URL of a separate topic"
                )
            taken[_identity(url)] = role

    def _open_input(self, url: StreamUrl, partition: int) -> JoinInput:
        if url.kind == "log":
            topic = Topic.open(url.place, url.topic)
            return LogInput(
                topic,
                partition,
                group=self._name,
                start=self._start,
                on_lost=self._on_lost,
                on_corrupt=self._on_corrupt,
            )
        return KafkaInput(
            url.place,
            url.topic,
            partition,
            group=self._name,
            start=self._start,
            on_lost=self._on_lost,
            config=_read_config(url),
        )

    def _open_sink(self, url: StreamUrl, partition: int) -> JoinSink:
        if url.kind == "log":
            return LogSink(LogWriter(Topic.open(url.place, url.topic), partition=partition), partition, self._name)
        return KafkaSink(url.place, url.topic, partition, name=self._name, config=_read_config(url))


def _check_options(url: StreamUrl) -> StreamUrl:
    known = {"log": set(), "kafka": {"config"}}[url.kind]
    if unknown := sorted(set(url.options) - known):
        raise ConfigError(
            f"url of topic {url.topic!r} has option {unknown[0]!r}, expected {sorted(known) or 'none'}; "
            "create a topic with settings first: monolith log append URL --create"
        )
    return url


def _add_suffix(url: StreamUrl) -> StreamUrl:
    return StreamUrl(url.kind, url.place, f"{url.topic}.dead", url.options)


def _identity(url: StreamUrl) -> tuple[str, str, str]:
    """Return the kind, place and name of a topic, equal for two spellings of one folder."""
    return url.kind, str(Path(url.place).resolve()) if url.kind == "log" else url.place, url.topic


def _read_config(url: StreamUrl) -> dict[str, str]:
    return read_settings(url.options["config"]) if "config" in url.options else {}


def _count_partitions(url: StreamUrl) -> int:
    if url.kind == "log":
        return Topic.open(url.place, url.topic).settings.partitions
    return count_partitions(url.place, url.topic, _read_config(url))
