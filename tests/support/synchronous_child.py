"""What the ranks of the tests of synchronous training do: each function is one rank's part, and returns what it saw."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import monolith as mt
from monolith.core.errors import DataError
from monolith.embedding import Adagrad, Adam, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.layers import Dense
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.roles.rank import run_rank
from monolith.training.groups.ranks import RankConnection, RankInfo, Ranks, RankStore
from monolith.training.hooks import Hook

TIMEOUT_S = 120.0


def be_rank(rank: int, size: int, port: int, pipe: Any, part: Callable[..., Any], args: Sequence[Any]) -> None:
    """Connect with the others, do a part, and send what it returns, or the error that it raises."""
    torch.set_num_threads(1)
    place = RankInfo(rank=rank, size=size, local_rank=rank, local_size=size, port=port)
    try:
        pipe.send((True, part(place, *args)))
    except Exception as error:
        pipe.send((False, (type(error).__name__, str(error))))


def with_ranks(place: RankInfo, part: Callable[..., Any], *args: Any, timeout_s: float = TIMEOUT_S) -> Any:
    with RankConnection(place, timeout_s=timeout_s, rendezvous_timeout_s=TIMEOUT_S) as ranks:
        return part(ranks, *args)


# --- a model whose steps can be compared: no dropout, no statistics of the batch --------------------------------------


class Plain(mt.Model):
    """Two features, an optimizer that adds up and one with moments, a layer that gets its shape late and has a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_feature("item", slot=2, combiner="mean")
        self.dense_feature("price")
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, optimizer=Adagrad(0.1), out="add_n")
        self.vectors = self.embedding_slice(["user", "item"], "vector", 4, optimizer=Adam(0.01), out="concat")
        self.late = Dense(8, activation="relu", kernel_regularizer="l2")
        self.out = nn.Linear(8, 1)
        self.unused = nn.Linear(3, 3)

    def forward(self, batch: Any) -> mt.Output:
        hidden = self.late(torch.cat([self.vectors(batch), batch.dense["price"]], dim=1))
        logits = (self.out(hidden) + self.bias(batch)).squeeze(1)
        return mt.Output(head="click", logits=logits, label=batch.label[:, 0])


def arrays(rows: int, seed: int) -> dict[str, Any]:
    """Random examples."""
    numbers = np.random.default_rng(seed)
    return {
        "ids": {
            "user": [[int(user)] for user in numbers.integers(0, 30, rows)],
            "item": [[int(item) for item in numbers.integers(-20, 20, numbers.integers(0, 4))] for _ in range(rows)],
        },
        "dense": {"price": numbers.random((rows, 1))},
        "label": numbers.integers(0, 2, rows),
        "event_time_s": numbers.integers(1000, 2000, rows),
    }


def batch_of(content: dict[str, Any], begin: int, end: int) -> mt.data.Batch:
    """A batch of some of the examples."""
    return mt.data.Batch.from_arrays(
        ids={name: lists[begin:end] for name, lists in content["ids"].items()},
        dense={name: values[begin:end] for name, values in content["dense"].items()},
        label=content["label"][begin:end],
        event_time_s=content["event_time_s"][begin:end],
    )


def shares(batches: int, rows: int, parts: Sequence[tuple[int, int, int]]) -> list[list[mt.data.Batch]]:
    """The batches of each rank; a part is (first row, last row, batches that the rank has)."""
    every = [arrays(rows, seed) for seed in range(batches)]
    return [[batch_of(content, begin, end) for content in every[:count]] for begin, end, count in parts]


def config_of(model_dir: Path | None = None, **options: Any) -> mt.RunConfig:
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "deterministic": True}
    return mt.RunConfig(model_dir="" if model_dir is None else str(model_dir), **{**quiet, **options})


def rows_of(tables: MultiTable) -> dict[str, dict[int, tuple[list[float], int]]]:
    """Every row by table and id: its values, and when it was last changed."""
    return {
        name: {
            fid: (tables[name].entry(fid).values.tolist(), tables[name].entry(fid).time_s)
            for ids, _ in tables[name].items()
            for fid in ids.tolist()
        }
        for name in tables
    }


def train_plain(
    ranks: RankConnection, data: Sequence[Sequence[mt.data.Batch]], settings: Sequence[dict[str, Any]]
) -> list[Any]:
    """Train once for each of the settings; return weights, this rank's rows, and the metrics."""
    found = []
    for options in settings:
        made = mt.Estimator(Plain, config_of(**options), group=Ranks(ranks))
        metrics = made.train(data[ranks.rank])
        weights = {name: value.tolist() for name, value in made.model.state_dict().items()}
        found.append((made.step, weights, rows_of(made.store.tables), metrics))
    return found


# --- stores -----------------------------------------------------------------------------------------------------------

SPECS = [
    TableSpec("a", [SliceSpec(2, optimizer=Sgd(0.5))]),
    TableSpec("b", [SliceSpec(3, optimizer=Adagrad(0.1))]),
]


def random_pushes(ranks: int, pushes: int, seed: int) -> list[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Ids and gradients of each push and rank, some of them the same at several ranks."""
    numbers = np.random.default_rng(seed)

    def one() -> tuple[dict[str, Any], dict[str, Any]]:
        ids = {spec.name: numbers.choice(np.arange(-10, 10), numbers.integers(0, 12), replace=False) for spec in SPECS}
        return ids, {
            spec.name: numbers.integers(-4, 5, (len(ids[spec.name]), spec.dim)).astype(np.float32) for spec in SPECS
        }

    return [[one() for _ in range(ranks)] for _ in range(pushes)]


def push_and_pull(ranks: RankConnection, seed: int, folder: Path) -> Any:
    store = RankStore(ranks, SPECS)
    for step, pushes in enumerate(random_pushes(ranks.size, 5, seed)):
        ids, grads = pushes[ranks.rank]
        store.push(ids, grads, time_s=10 * ranks.rank + step, step=step)
    pulled = store.pull({"a": np.arange(-10, 10), "b": np.arange(-10, 10)[ranks.rank :]})
    manifest = store.snapshot(folder)
    own = {name: sorted(fid for ids, _ in store.tables[name].items() for fid in ids.tolist()) for name in store.tables}
    return {name: rows.tolist() for name, rows in pulled.items()}, dict(manifest.rows), own


def connect_twice(place: RankInfo) -> list[int]:
    """Connect, and connect again at the same address. Rank 0 closes its first connection late."""
    sums = []
    for _ in range(2):
        with RankConnection(place, timeout_s=20.0, rendezvous_timeout_s=20.0) as ranks:
            value = torch.tensor([ranks.rank + 1])
            torch.distributed.all_reduce(value)
            sums.append(int(value))
            if ranks.is_chief:
                time.sleep(0.7)
    return sums


def connect_while_a_store_closes(place: RankInfo) -> int:
    """Connect. Rank 0 first acts as a store that answers the greeting of rank 1 and closes before the next answer."""
    if place.rank == 0:
        with socket.create_server((place.host, place.port)) as listening:
            listening.settimeout(TIMEOUT_S)
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                greeting = b""
                while len(greeting) < 10:  # a magic number, and the nonce that the store sends back
                    greeting += connection.recv(10 - len(greeting))
                connection.sendall(greeting[6:])
                connection.recv(1)
    with RankConnection(place, timeout_s=20.0, rendezvous_timeout_s=20.0) as ranks:
        value = torch.tensor([ranks.rank + 1])
        torch.distributed.all_reduce(value)
        return int(value)


def restore_and_save(ranks: RankConnection, specs: Sequence[TableSpec], source: Path, target: Path) -> list[int]:
    """Move a snapshot to this number of ranks and save it from there."""
    store = RankStore(ranks, specs)
    store.restore(source)
    store.snapshot(target)
    return [len(store.tables[name]) for name in store.tables]


def refuse_a_snapshot(ranks: RankConnection, missing: Path) -> Any:
    return RankStore(ranks, SPECS).restore(missing)


# --- whole jobs -------------------------------------------------------------------------------------------------------


def environment_of(place: RankInfo) -> dict[str, str]:
    values = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": place.host,
        "MASTER_PORT": place.port,
    }
    return {name: str(value) for name, value in values.items()}


def run_job(place: RankInfo, config: ClusterJobConfig) -> dict[str, float] | None:
    return run_rank(config, environment_of(place))


def run_jobs(place: RankInfo, *configs: ClusterJobConfig) -> dict[str, float] | None:
    """One after the other, as if the program had been started again each time."""
    found = None
    for config in configs:
        found = run_rank(config, environment_of(place))
    return found


# --- things that go wrong ---------------------------------------------------------------------------------------------


class AtStep(Hook):
    """Does something after a step."""

    def __init__(self, step: int, action: Callable[[Any], None]) -> None:
        self._step = step
        self._action = action

    def after_step(self, run: Any, result: Any) -> None:
        if result.step == self._step:
            self._action(run)


def endless(batches: Sequence[mt.data.Batch]) -> Iterator[mt.data.Batch]:
    while True:
        yield from batches


class Endless:
    """Data without an end."""

    def __init__(self, batches: Sequence[mt.data.Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[mt.data.Batch]:
        return endless(self._batches)


def lose_rank_1(place: RankInfo, how: str, timeout_s: float) -> Any:
    """Rank 1 ends or stands still in the middle of the training of all."""

    def lose(run: Any) -> None:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            raise RuntimeError("rank 1 has a fault of its own")

    def train(ranks: RankConnection) -> Any:
        made = mt.Estimator(Plain, config_of(), group=Ranks(ranks))
        hooks = [AtStep(3, lose)] if ranks.rank == 1 else []
        data: Any = Endless(shares(2, 8, [(0, 8, 2)])[0])
        return made.train(data, hooks=hooks)

    return with_ranks(place, train, timeout_s=timeout_s)


def read_a_fault(ranks: RankConnection) -> Any:
    """Rank 1 cannot read its fourth batch; rows are pulled ahead meanwhile."""
    batches = shares(6, 8, [(0, 8, 6)])[0]

    class Faulty:
        def __iter__(self) -> Iterator[mt.data.Batch]:
            yield from batches[:3]
            if ranks.rank == 1:
                raise DataError("the fourth batch is broken")
            yield from batches[3:]

    made = mt.Estimator(Plain, config_of(embedding_prefetch_capacity=2), group=Ranks(ranks))
    data: Any = Faulty()
    return made.train(data)


def diverge(ranks: RankConnection) -> Any:
    """One example of rank 1's second batch is not a number."""
    good, bad = shares(2, 8, [(0, 8, 2)])[0]
    if ranks.rank == 1:
        prices = bad.dense["price"].copy()
        prices[3] = np.nan
        bad = dataclasses.replace(bad, dense={"price": prices})
    made = mt.Estimator(Plain, config_of(), group=Ranks(ranks))
    return made.train([good, bad])


def ask_rank_1_to_stop(ranks: RankConnection, model_dir: Path) -> Any:
    made = mt.Estimator(Plain, config_of(model_dir), group=Ranks(ranks))
    hooks = [AtStep(4, lambda run: run.stop("enough"))] if ranks.rank == 1 else []
    data: Any = Endless(shares(2, 8, [(0, 8, 2)])[0])
    made.train(data, hooks=hooks)
    return made.step


def save_and_pause(ranks: RankConnection, model_dir: Path) -> Any:
    """Another thread of rank 0 pauses all, saves while they stand still, and ends the run."""
    seen: dict[str, Any] = {}

    def steer(run: Any) -> None:
        run.pause()
        while not run.is_paused:
            time.sleep(0.01)
        seen["step"] = run.step
        seen["saved"] = run.save("asked").name
        run.stop("steered")
        run.resume()

    made = mt.Estimator(Plain, config_of(model_dir), group=Ranks(ranks))
    threads: list[threading.Thread] = []

    def begin(run: Any) -> None:
        threads.append(threading.Thread(target=steer, args=(run,)))
        threads[0].start()

    data: Any = Endless(shares(2, 8, [(0, 8, 2)])[0])
    made.train(data, hooks=[AtStep(2, begin)] if ranks.rank == 0 else [])
    for thread in threads:
        thread.join()
    return made.step, seen


def spoil_rank_1(ranks: RankConnection, model_dir: Path) -> Any:
    """Rank 1 cannot write its part of the second checkpoint; the first one stays."""
    made = mt.Estimator(Plain, config_of(model_dir, background_save=False), group=Ranks(ranks))
    batches = shares(4, 8, [(0, 8, 4)])[0]
    made.train(batches, max_steps=2)
    if ranks.rank == 1:
        from monolith.embedding.snapshot import TableCut

        def refuse(*_: Any) -> Any:
            raise OSError("the disk of rank 1 is full")

        TableCut.write_part = refuse  # type: ignore[method-assign]
    return made.train(batches, max_steps=4)
