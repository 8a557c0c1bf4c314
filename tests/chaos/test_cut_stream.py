"""Minutes in which a trainer, parameter servers and a model server die at random: every prediction is of one cut."""

from __future__ import annotations

import os
import random
from pathlib import Path

from cut_stream import PROCESSES, CutStream
from monolith.core.clock import Deadline, SystemClock
from torture_counts import add_counts

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))


def test_every_prediction_is_of_one_cut_whoever_dies(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    done: list[str] = []
    with CutStream(tmp_path, limit_s=SECONDS + 600) as stream:
        stream.go_on()
        end = Deadline(SystemClock(), SECONDS)
        while len(done) < 3 or not end.is_past:
            name = chance.choice(PROCESSES)
            stream.hurt(name)
            done.append(name)
            print(f"{end.remaining_s():.0f} s to go: {name}, {len(stream.answers)} answers", flush=True)
        stream.finish()
    cuts, answers = stream.cuts(), stream.answers
    found = stream.violations()
    add_counts(operations=len(answers), faults=len(done), cycles=len(done))
    assert not found, "\n".join([f"killed {done}", *(f"{one.kind}: {one.text}" for one in found[:20])])
    assert answers[-1].state == cuts[-1].state, "the last state has arrived"
    print(f"killed {len(done)} processes: {len(cuts)} cuts, {len(answers)} answers, each of one cut", flush=True)
