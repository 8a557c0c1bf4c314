"""Learns clicks with two embedding tables and NumPy, then admits, expires, saves and serves rows.

Run it with ``make demo`` or ``python examples/01_local_table.py``. It takes a few seconds and needs no PyTorch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import monolith as mt

USER, ITEM, DAY_S = 1, 2, 86_400  # two slots (which feature an id belongs to), and a day


def spec(name: str, **settings: object) -> mt.TableSpec:
    taste = mt.SliceSpec(8, optimizer=mt.Adagrad(0.2), initializer=mt.RandomUniform(-0.1, 0.1), compressor=mt.Fp16())
    bias = mt.SliceSpec(1, optimizer=mt.Adagrad(0.2))
    return mt.TableSpec(name, [taste, bias], expire_days=30, **settings)  # type: ignore[arg-type]


def ids_of(slot: int, numbers: np.ndarray) -> np.ndarray:
    return (slot << mt.fid.V2_SIGNATURE_BITS) | numbers.astype(np.int64)


def train(tables: mt.MultiTable, start_s: int, steps: int = 300, batch: int = 2048) -> None:
    """Train on clicks that follow hidden preferences in 3 dimensions; a day has 100 steps."""
    random = np.random.default_rng(0)
    user_taste, item_taste = random.normal(size=(2000, 3)), random.normal(size=(500, 3))
    losses = []
    for step in range(steps):
        users, items = random.integers(0, 2000, batch), random.integers(0, 500, batch)
        chance = 1 / (1 + np.exp(-1.5 * (user_taste[users] * item_taste[items]).sum(1)))
        clicked = random.random(batch) < chance
        ids = {"item": ids_of(ITEM, items), "user": ids_of(USER, users)}

        rows = tables.lookup(ids)  # one call for both tables
        user, item = rows["user"], rows["item"]
        score = 1 / (1 + np.exp(-((user[:, :8] * item[:, :8]).sum(1) + user[:, 8] + item[:, 8])))
        losses.append(-np.log(np.where(clicked, score, 1 - score) + 1e-7).mean())
        error = (score - clicked)[:, None].astype(np.float32)
        grads = {"item": np.hstack([error * user[:, :8], error]), "user": np.hstack([error * item[:, :8], error])}
        tables.apply_gradients(ids, grads, time_s=start_s + step * DAY_S // 100, step=step)
        if (step + 1) % 100 == 0:
            first, last = np.mean(losses[-100:-80]), np.mean(losses[-20:])
            print(f"  day {(step + 1) // 100}: {batch * 100:,} events, loss {first:.3f} -> {last:.3f}")


def main() -> None:
    start_s = 1_700_000_000
    # A user gets a row at the third sighting; a popular item must not wait.
    rare = {"admission": mt.SlidingHashFilter(100_000), "slot_thresholds": {USER: 2}}
    tables = mt.MultiTable([spec("user", **rare), spec("item")])
    print("Training on clicks:")
    train(tables, start_s)
    users, items = tables["user"], tables["item"]
    print(f"{users!r}\n{items!r}")
    known, newcomer, old = (int(each) for each in ids_of(USER, np.array([7, 999_999, 5_555])))
    users.apply_gradients([newcomer], np.ones((1, 9)), time_s=users.max_time_s)
    for _ in range(3):
        users.apply_gradients([old], np.ones((1, 9)), time_s=start_s - 40 * DAY_S)
    print(f"\n{users.evict()} row expired: 30 days without an event, by the clock of the events")
    print("\n".join(users.explain(each) for each in (known, newcomer, old)))

    with tempfile.TemporaryDirectory() as folder:
        tables.save(Path(folder, "clicks"))
        again = mt.MultiTable.load(Path(folder, "clicks"))
        ids = ids_of(USER, np.arange(2000))
        same = np.array_equal(again["user"].lookup(ids), users.lookup(ids))
        files = sum(file.stat().st_size for file in Path(folder, "clicks").iterdir())
    print(f"\nSaved {files:,} bytes, loaded again: {'the same rows' if same else 'DIFFERENT ROWS'}")
    print(f"Items take {items.memory_bytes:,} bytes to train, {items.to_serving().memory_bytes:,} to serve")
    print("\nNext: docs/guide/tables.md;  monolith inspect table --help;  make bench")


if __name__ == "__main__":
    main()
