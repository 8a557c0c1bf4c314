"""Time from the kill of a server until entries forget it, and from a publication to the first prediction."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import monolith as mt
from agent.results import progress
from agent.workload import Sizes
from measure.results import Result
from monolith import models
from monolith.agent.address_client import AddressClient
from monolith.agent.controller import Controller
from monolith.agent.session import make_session
from monolith.core import fid
from monolith.core.clock import SystemClock
from monolith.core.errors import ClusterError, MonolithError
from monolith.data.records import messages
from monolith.export import ExportOptions
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper

__all__ = ["fleet_cases"]

_SHARDS = 2
_ROWS_PER_BATCH = 50_000
_BZID = "bench"


def fleet_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Run one entry and two shards with two replicas each, publish a model, and kill PS servers."""
    reason = why_no_zookeeper()
    if reason is not None:
        raise ClusterError(f"the benchmark needs ZooKeeper: {reason}")
    clock = SystemClock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        progress(f"exporting {sizes.rows:,} rows")
        _export(folder / "models", sizes.rows)
        server = stack.enter_context(ZooKeeperServer(tick_ms=500))
        session = make_session(server.address)
        session.start()
        stack.callback(session.stop)
        agents = [_start(stack, folder, server.address, "entry-0", None)]
        agents += [
            _start(stack, folder, server.address, f"ps-{shard}-{replica}", shard)
            for shard in range(_SHARDS)
            for replica in range(2)
        ]
        ports = [json.loads(agent.stdout.readline())["agent_port"] for agent in agents if agent.stdout is not None]
        controller = Controller(session, _BZID)
        with AddressClient(f"127.0.0.1:{ports[0]}", timeout_s=30) as client:
            progress("waiting for the servers")
            clock.sleep_s(15.0)
            begin_s = clock.monotonic_s()
            model = controller.declare(str(folder / "models"))[0].model_name
            controller.publish("main", f"{model}:*")
            _until(clock, lambda: client.heart_beat("ps").addresses[f"{model}:entry"].address)
            address = client.heart_beat("ps").addresses[f"{model}:entry"].address[0]
            _until(clock, lambda: _answers(address, model))
            published_s = clock.monotonic_s() - begin_s
            waits = [_kill(clock, client, agents[1], f"{model}:ps_0") for _ in range(sizes.kills)]
    worst = max(waits)
    found = {
        "killed_server_leaves_s": Result(
            case="killed_server_leaves_s", ours=worst, ratio=worst, unit="s", rounds=len(waits)
        ),
        "publish_to_prediction_s": Result(
            case="publish_to_prediction_s", ours=published_s, ratio=published_s, unit="s", rounds=1
        ),
    }
    yield from (found[case] for case in cases)


def _kill(clock: SystemClock, client: AddressClient, agent: subprocess.Popen[str], key: str) -> float:
    """Kill the server of an agent; return the seconds until the entry's agent hands out one address less."""
    _until(clock, lambda: len(client.heart_beat("ps").addresses[key].address) == 2)
    children = [
        int(pid) for file in Path(f"/proc/{agent.pid}/task").glob("*/children") for pid in file.read_text().split()
    ]
    begin_s = clock.monotonic_s()
    os.kill(children[0], signal.SIGKILL)
    _until(clock, lambda: len(client.heart_beat("ps").addresses[key].address) == 1)
    return clock.monotonic_s() - begin_s


def _export(folder: Path, rows: int) -> None:
    made = mt.Estimator(models.build("deepfm", {"sparse": ["slot_1"], "dim": 16}))
    for begin in range(0, rows, _ROWS_PER_BATCH):
        users = range(begin, min(rows, begin + _ROWS_PER_BATCH))
        batch = mt.Batch.from_arrays(
            ids={"slot_1": [[fid.make_v2(1, user)] for user in users]}, label=np.arange(len(users))[:, None] % 2
        )
        made.train([batch])
    made.export(folder, version=1, options=ExportOptions(layout="distributed", shards=_SHARDS))


def _start(stack: ExitStack, folder: Path, servers: str, name: str, shard: int | None) -> subprocess.Popen[str]:
    conf = folder / f"{name}.conf"
    filters = "entry" if shard is None else "ps_{i}; i % ${shard_num} == ${shard_id}"
    conf.write_text(
        f"bzid {_BZID}\nagent_version 3\ndeploy_type unified\nzk_servers {servers}\nlayout_pattern main\n"
        f"layout_filters {filters}\n"
    )
    variables = {"MY_POD_NAME": name, "MY_HOST_IP": "127.0.0.1"}
    if shard is not None:
        variables |= {"SHARD_ID": str(shard), "MONOLITH_HOST_SHARD_N": str(_SHARDS)}
    command = [sys.executable, "-m", "monolith", "agent", "run", "--json", "--conf", str(conf)]
    agent = subprocess.Popen(
        [*command, "--tfs-log", str(folder / f"{name}.log")],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def end() -> None:
        agent.terminate()
        agent.wait()

    stack.callback(end)
    return agent


def _answers(address: str, model: str) -> bool:
    message = messages.ExampleBatch(batch_size=1)
    message.named_feature_list.add(name="slot_1").feature.add().fid_v2_list.value.append(fid.make_v2(1, 3))
    try:
        with mt.serving.Client(address, model=f"{model}:entry", timeout_s=30) as client:
            client.score(message.SerializeToString(), "example_batch")
    except MonolithError:
        return False
    return True


def _until(clock: SystemClock, is_true: Callable[[], object], timeout_s: float = 300.0) -> None:
    end_s = clock.monotonic_s() + timeout_s
    while not is_true():
        if clock.monotonic_s() > end_s:
            raise ClusterError(f"the fleet did not follow within {timeout_s:g} s")
        clock.sleep_s(0.01)
