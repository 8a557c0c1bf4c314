"""Whoever is killed, every prediction is of one cut: with a trainer, two parameter servers and a model server."""

from __future__ import annotations

import random
from pathlib import Path

from cut_stream import PROCESSES, CutStream


def test_every_prediction_is_of_one_cut_while_each_process_is_killed(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed).sample(PROCESSES, len(PROCESSES))
    with CutStream(tmp_path, limit_s=900.0) as stream:
        stream.go_on()
        for name in order:
            stream.hurt(name)
        stream.finish()
    cuts, answers = stream.cuts(), stream.answers
    found = stream.violations()
    assert not found, "\n".join([f"killed {order}", *(f"{one.kind}: {one.text}" for one in found[:20])])
    assert answers[-1].state == cuts[-1].state, "the last state has arrived"
    assert len({answer.state for answer in answers}) > 10
    assert len({cut.run for cut in cuts}) >= 4, "exported, begun, the trainer's new start, and back for each server"
    assert stream.servers == 2
