"""Each process of the whole loop is killed, stopped and restarted in turn, and numbered events show every loss."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from counting_model import counts
from loop_counter import NumberedPages, export_counter, read_examples, read_impressions
from monolith.demo.loop import Loop, LoopSettings
from monolith.testing.eventually import eventually

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SUPPORT = Path(__file__).parents[1] / "support"
NAMES = ("joiner", "live", "trainer", "ps-0", "ps-1", "batch")
FAULTS = ("kill", "stop", "restart")
CHECKPOINT_S = 5.0
LIVE_WINDOW_S = 1.0
"""Impressions of the last second before a kill of the server may wait in its memory."""
SERVER_WINDOW_S = 2.0
"""Pushes of the last delta interval, a second, before a kill of a parameter server are lost, and its detection."""
IDLE_S = 5.0
"""Time without lag after which a trainer has read all rows."""


def cause(loop: Loop, name: str, fault: str) -> None:
    """Cause one fault and wait until the process runs again."""
    process = loop.processes[name]
    if fault == "kill":
        process.restart()
    elif fault == "restart":
        process.terminate()
        eventually(lambda: not process.is_running, timeout_s=60)
        process.restart()
    else:
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(3.0)  # the length of the fault; no wait depends on it
        process.send_signal(signal.SIGCONT)


def test_the_loop_loses_and_doubles_nothing_beyond_its_windows(tmp_path: Path) -> None:
    seed = int(os.environ.get("LOOP_SEED", str(time.time_ns() % 1_000_000)))
    print(f"LOOP_SEED={seed}")
    chance = random.Random(seed)
    settings = LoopSettings(
        folder=tmp_path,
        task=f"{SUPPORT / 'counting_model.py'}:Counter",
        export=export_counter(tmp_path / "export"),
        batch_rows=16,
        batch_s=5.0,
        checkpoint_s=CHECKPOINT_S,
    )
    faults: Counter[tuple[str, str]] = Counter()
    kills: dict[str, list[float]] = {name: [] for name in NAMES}
    with Loop(settings, print) as loop:
        pages = NumberedPages(loop)
        end_s = time.monotonic() + SECONDS
        order: list[tuple[str, str]] = []
        while time.monotonic() < end_s:
            if not order:
                order = [(name, fault) for name in NAMES for fault in FAULTS]
                chance.shuffle(order)
            name, fault = order.pop()
            threading.Event().wait(chance.uniform(1.0, 4.0))
            if fault == "kill":
                kills[name].append(time.time())
            cause(loop, name, fault)
            faults[name, fault] += 1
            print(f"{fault} {name}; answered {len(pages.answered)}, retries {dict(pages.retries)}", file=sys.stderr)
        pages.close()
        examples = wait_for_examples(loop, pages)
        wait_for_training(loop)
        end_trainer(loop)
    check_impressions(loop, pages, kills["live"])
    check_examples(loop, pages, examples)
    check_training(tmp_path, pages, examples, kills)
    print({f"{fault} {name}": count for (name, fault), count in sorted(faults.items())}, "retries", dict(pages.retries))


def wait_for_examples(loop: Loop, pages: NumberedPages) -> Counter[tuple[int, int]]:
    """Wait until the joiner has read all impressions and actions; return the rows."""

    def is_joined() -> bool:
        shown = read_impressions(loop)
        rows = read_examples(loop)
        return {number for number, emission in rows if not emission} == shown and {
            number for number, emission in rows if emission
        } >= shown & pages.clicked

    eventually(is_joined, timeout_s=120)
    return read_examples(loop)


def wait_for_training(loop: Loop) -> None:
    """Wait until the trainer has read all rows: its lag stays 0, for the gauge is as old as the last read."""
    zero_since_s: list[float] = []

    def is_trained() -> bool:
        page = loop.page("trainer")
        lag = None if page is None else page.newest("monolith_log_lag_records")
        if lag is None or lag > 0:
            zero_since_s.clear()
        elif not zero_since_s:
            zero_since_s.append(time.monotonic())
        return bool(zero_since_s) and time.monotonic() - zero_since_s[0] > IDLE_S

    eventually(is_trained, timeout_s=180)


def end_trainer(loop: Loop) -> None:
    """Stop the trainer, which saves a last checkpoint; ``Loop.close`` would kill it after a time."""
    trainer = loop.processes["trainer"]
    trainer.terminate()
    eventually(lambda: not trainer.is_running, timeout_s=180)


def check_impressions(loop: Loop, pages: NumberedPages, killed_s: list[float]) -> None:
    """An answered page is in the log, unless a kill of the server came within its window."""
    shown = read_impressions(loop)
    lost = sorted(pages.answered.keys() - shown)
    unexplained = [
        number
        for number in lost
        if not any(0 <= kill_s - pages.answered[number] <= LIVE_WINDOW_S for kill_s in killed_s)
    ]
    print(f"answered {len(pages.answered)}, lost with a killed server {len(lost)}, unexplained {len(unexplained)}")
    assert unexplained == []


def check_examples(loop: Loop, pages: NumberedPages, examples: Counter[tuple[int, int]]) -> None:
    """The joiner writes each row once, through all kills."""
    shown = read_impressions(loop)
    doubled = {row: count for row, count in examples.items() if count > 1}
    assert doubled == {}
    assert {number for number, emission in examples if not emission} == shown
    assert {number for number, emission in examples if emission} == shown & pages.clicked
    print(f"impressions {len(shown)}, rows {examples.total()}, doubled 0, missing 0")


def check_training(
    folder: Path, pages: NumberedPages, examples: Counter[tuple[int, int]], kills: dict[str, list[float]]
) -> None:
    """A row counts once in the model, beyond the windows of killed trainers and parameter servers."""
    total = max(pages.answered) + 1
    expected = np.zeros(total)
    for number, _ in examples:
        expected[number] += 1
    trained = counts(folder / "model", total).round()
    missing, extra = np.maximum(expected - trained, 0), np.maximum(trained - expected, 0)
    rate = examples.total() / SECONDS
    ps_kills, trainer_kills = len(kills["ps-0"]) + len(kills["ps-1"]), len(kills["trainer"])
    print(
        f"rows {int(expected.sum())}, trained {int(trained.sum())}: missing {int(missing.sum())} after {ps_kills} "
        f"server kills, extra {int(extra.sum())} after {trainer_kills} trainer kills"
    )
    assert missing.sum() <= ps_kills * SERVER_WINDOW_S * rate
    assert extra.sum() <= (trainer_kills + ps_kills) * (CHECKPOINT_S + SERVER_WINDOW_S) * rate
