"""Numbered pages through the whole loop, and the counts of each number in every place of the loop.

Every impression has a unique number as its user, and the model of ``counting_model`` counts the rows of each user. So
an impression that was lost, doubled in the joiner, or trained twice is visible by its number.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

import monolith as mt
from counting_model import Counter as CountingModel
from monolith.core.errors import MonolithError
from monolith.data.records.messages import parse_message
from monolith.data.sources.urls import open_sink, open_source
from monolith.demo.loop import ACTIONS, EXAMPLES, IMPRESSIONS, MODEL, Loop
from monolith.demo.world import World
from monolith.demo.world.events import CLICK, encode_action, encode_impressions
from monolith.export import export_model
from monolith.serving import Client
from monolith.stream.line_id import MESSAGES

WIDTH = 8
CLICKED = 3
"""Every so many numbers are clicked."""


def export_counter(folder: Path) -> Path:
    """Export the model that counts rows; return the folder of its versions."""
    made = mt.Estimator(CountingModel)
    export_model(made.model, made.store, folder, name=MODEL, step=0, version=1)
    return folder


class NumberedPages:
    """Sends numbered pages in a thread; a page is sent again, with the same key, until the server answers it."""

    def __init__(self, loop: Loop, pages_per_s: float = 25.0) -> None:
        self._loop = loop
        self._pause_s = 1 / pages_per_s
        self._template = World(users=5, items=5, seed=1).clicks(WIDTH)
        self._sink = open_sink(loop.settings.url(ACTIONS))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="numbered-pages", daemon=True)
        self.answered: dict[int, float] = {}
        """Time of the answer to the page of each number."""
        self.clicked: set[int] = set()
        self.retries: Counter[str] = Counter()
        """Number of failed requests by class of error."""
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._sink.close()

    def _send_all(self) -> None:
        first = 0
        with Client(self._loop.live_address, model=MODEL, timeout_s=2.0) as client:
            while not self._stop.wait(self._pause_s):
                if self._send(client, first):
                    first += WIDTH

    def _send(self, client: Client, first: int) -> bool:
        numbers = np.arange(first, first + WIDTH, dtype=np.int64)
        page = replace(self._template, user_id=numbers, item_id=numbers + 1)
        key, time_ms = b"page-%d" % first, int(time.time() * 1000)
        records = []
        for example, number in zip(encode_impressions(page), numbers.tolist(), strict=True):
            example.line_id.item_id = number + 1
            example.line_id.request_key = key
            example.line_id.event_time_ms = time_ms
            example.line_id.req_time = time_ms // 1000
            records.append(example.SerializeToString())
        while True:
            try:
                client.score(records, "examples")
                break
            except MonolithError as error:
                self.retries[type(error).__name__] += 1
                if self._stop.wait(0.1):
                    return False
        now_s = time.time()
        for number in numbers.tolist():
            self.answered[number] = now_s
            if number % CLICKED == 0:
                self._sink.write(encode_action(key, number + 1, CLICK, time_ms + 1), key, time_ms + 1)
                self.clicked.add(number)
        return True


def read_numbers(loop: Loop, topic: str) -> Counter[tuple[int, int]]:
    """Return how often each (number, emission) is in a topic."""
    source = open_source(f"{loop.settings.url(topic)}?until_end=1", "example")
    found: Counter[tuple[int, int]] = Counter()
    while (records := source.read()) is not None:
        for index in range(len(records)):
            line_id = parse_message(MESSAGES.Example, records[index]).line_id
            found[(line_id.item_id - 1, line_id.emission)] += 1
    source.close()
    return found


def read_impressions(loop: Loop) -> set[int]:
    """Return the numbers in the topic of impressions; a page that was sent twice may be there twice."""
    return {number for number, _ in read_numbers(loop, IMPRESSIONS)}


def read_examples(loop: Loop) -> Counter[tuple[int, int]]:
    """Return how often each (number, emission) is in the topic of examples."""
    return read_numbers(loop, EXAMPLES)
