"""Memory of an agent that knows many replicas, and the time from a change to its addresses file."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.results import progress
from agent.workload import Sizes
from measure.results import Result
from monolith.agent.address_service import LayoutAddressBook
from monolith.agent.addresses_file import AddressesFile
from monolith.agent.bindings import Bindings
from monolith.agent.node_paths import NodePaths
from monolith.agent.records import Container, ContainerServiceInfo, SavedModel, SavedModelDeployConfig
from monolith.agent.session import make_session
from monolith.core.clock import SystemClock
from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_session import CreateNode, Operation
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper

__all__ = ["map_cases"]

_BZID = "bench"
_CONTAINERS = 100
_BATCH = 500


def map_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill ZooKeeper with bindings, start an agent's map in another process, and change single bindings."""
    reason = why_no_zookeeper()
    if reason is not None:
        raise ClusterError(f"the benchmark needs ZooKeeper: {reason}")
    clock = SystemClock()
    with ZooKeeperServer(tick_ms=500) as server, tempfile.TemporaryDirectory() as folder:
        session = make_session(server.address)
        session.start()
        progress(f"making {sizes.replicas:,} bindings of {sizes.models:,} models")
        paths = NodePaths(_BZID)
        for each in (paths.saved_models, paths.layout("main"), paths.bindings, paths.container_services):
            session.ensure(each)
        operations: list[Operation] = []
        for number in range(_CONTAINERS):
            info = ContainerServiceInfo(grpc=f"10.0.{number // 256}.{number % 256}:8500").to_bytes()
            operations.append(CreateNode(paths.container_service(Container("c", str(number))), info))
        per_model = sizes.replicas // sizes.models
        for number in range(sizes.models):
            model = SavedModel(f"model_{number}", "ps_0")
            config = SavedModelDeployConfig(f"/models/{number}/ps_0", "latest_once").to_bytes()
            operations += [
                CreateNode(f"{paths.saved_models}/{model.model_name}", b""),
                CreateNode(paths.saved_model(model), config),
                CreateNode(f"{paths.layout('main')}/{model}", b""),
                CreateNode(paths.model_bindings(model.model_name), b""),
            ]
            operations += [
                CreateNode(paths.binding(model, Container("c", str((number + each) % _CONTAINERS))), b"")
                for each in range(per_model)
            ]
        for begin in range(0, len(operations), _BATCH):
            session.commit(operations[begin : begin + _BATCH])
        target = Path(folder) / "addresses.json"
        child = subprocess.Popen(
            [sys.executable, "-c", "from agent.replica_map import follow; follow()", server.address, str(target)],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            begin_s = clock.monotonic_s()
            _wait(clock, target, lambda table: sum(map(len, table.values())) == per_model * sizes.models)
            filled_s = clock.monotonic_s() - begin_s
            waits = []
            for change in range(sizes.changes):
                model = SavedModel(f"model_{change * 7 % sizes.models}", "ps_0")
                path = paths.binding(model, Container("c", str(change * 7 % sizes.models % _CONTAINERS)))
                start_s = clock.monotonic_s()
                session.delete(path)
                _wait(clock, target, lambda table, model=model: len(table[str(model)]) == per_model - 1)
                waits.append(clock.monotonic_s() - start_s)
                session.create(path)
                _wait(clock, target, lambda table, model=model: len(table[str(model)]) == per_model)
            memory = _resident_mb(child.pid)
        finally:
            child.terminate()
            child.wait()
            session.stop()
    worst = max(waits)
    found = {
        "agent_memory_mb": Result(
            case="agent_memory_mb",
            ours=memory,
            ratio=memory,
            unit="MB",
            rounds=1,
            extra={"fill_s": filled_s},
        ),
        "map_change_s": Result(
            case="map_change_s",
            ours=worst,
            ratio=worst,
            unit="s",
            rounds=len(waits),
            extra={"median_s": statistics.median(waits)},
        ),
    }
    yield from (found[case] for case in cases)


def follow() -> None:
    """Follow the map as an agent does, until the process ends."""
    servers, target = sys.argv[1], Path(sys.argv[2])
    session = make_session(servers)
    session.start()
    bindings = Bindings(session, _BZID, on_service_map=lambda: file.wake())
    file = AddressesFile(target, LayoutAddressBook(bindings).addresses)
    file.start()
    bindings.register_layout_callback(NodePaths(_BZID).layout("main"), lambda entries: None)
    threading.Event().wait()


def _wait(clock: SystemClock, target: Path, is_true: object, timeout_s: float = 300.0) -> None:
    end_s = clock.monotonic_s() + timeout_s
    stamp = 0
    while clock.monotonic_s() < end_s:
        if target.exists() and (changed := target.stat().st_mtime_ns) != stamp:
            stamp = changed
            if is_true(json.loads(target.read_text())):  # type: ignore[operator]
                return
        clock.sleep_s(0.002)
    raise ClusterError(f"the addresses file did not follow within {timeout_s:g} s")


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ClusterError(f"process {pid} has no VmHWM; it ended")
