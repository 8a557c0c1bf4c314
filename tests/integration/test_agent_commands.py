"""Real exports are declared and measured, and the commands of an agent start servers that score them."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import monolith as mt
from monolith import models
from monolith.agent.config import AgentConfig, load_config
from monolith.agent.controller import Controller
from monolith.agent.hosts import find_own_host
from monolith.agent.model_configs import fixed_model_configs, model_config_text
from monolith.agent.model_sizes import measure_model
from monolith.agent.platform_config import batching_parameters_text
from monolith.agent.server_command import serve_command
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core import fid
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import MonolithError
from monolith.data.records import messages
from monolith.export import ExportOptions
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

USERS = [3, 5, 3, 9]


def batch() -> mt.Batch:
    return mt.Batch.from_arrays(
        ids={"slot_1": [[fid.make_v2(1, user)] for user in USERS]}, label=np.arange(len(USERS))[:, None] % 2
    )


def as_example_batch() -> bytes:
    message = messages.ExampleBatch(batch_size=len(USERS))
    column = message.named_feature_list.add(name="slot_1")
    for user in USERS:
        column.feature.add().fid_v2_list.value.append(fid.make_v2(1, user))
    return message.SerializeToString()


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("model") / "exported_models"
    model = models.build("deepfm", {"sparse": ["slot_1"], "dim": 4, "vec_compressor": mt.Fp32()})
    estimator = mt.Estimator(model)
    estimator.train([batch()] * 5)
    estimator.export(folder, version=7, options=ExportOptions(layout="distributed", shards=2))
    scores = next(iter(estimator.predict([batch()])))
    return folder, np.asarray(next(iter(scores.values()))).reshape(-1)


def test_a_real_export_is_declared_by_its_manifest_and_measured(export: tuple[Path, np.ndarray]) -> None:
    folder, _ = export
    with MemoryEnsemble() as ensemble:
        controller = Controller(ensemble.open(), f"gip-{uuid.uuid4().hex}")
        declared = controller.declare(str(folder))
    manifests = {name: read_export_manifest(folder / name / "7") for name in ("entry", "ps_0", "ps_1")}
    assert [each.sub_graph for each in declared] == ["entry", "ps_0", "ps_1"]
    assert {each.model_name for each in declared} == {manifests["entry"].name}
    sizes = measure_model(str(folder))
    assert {name: size.bytes for name, size in sizes.items()} == {
        name: manifest.bytes for name, manifest in manifests.items()
    }
    assert all(size.bytes > 0 for size in sizes.values())


def wait_until(is_true: Callable[[], object], children: list[subprocess.Popen[bytes]]) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, 120)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        assert all(child.poll() is None for child in children), "a server ended"
        clock.sleep_s(0.05)


@pytest.fixture
def config(export: tuple[Path, np.ndarray], tmp_path: Path) -> AgentConfig:
    path = tmp_path / "agent.conf"
    path.write_text(
        f"bzid b\nbase_name m\nbase_path {export[0]}\nzk_servers 127.0.0.1:2181\ndeploy_type mixed\nnum_ps 2\n"
        "enable_batching true\nfetch_ps_timeout_ms 30 * 1000\nnum_load_threads 2\ngrpc_max_threads 8\n"
    )
    return load_config(path, {"MY_HOST_IP": "127.0.0.1"})


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        children: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: [child.wait(60) for child in children])
        stack.callback(lambda: [child.terminate() for child in children])
        yield children


@pytest.mark.slow
def test_servers_of_an_agent_start_and_score(
    export: tuple[Path, np.ndarray],
    config: AgentConfig,
    tmp_path: Path,
    children: list[subprocess.Popen[bytes]],
) -> None:
    host = find_own_host(config.environment)
    ps = host.reachable_address(config.ports.ps.tfs_ps_port or 0)
    (tmp_path / "addresses.json").write_text(json.dumps({"ps_0": [ps], "ps_1": [ps]}))
    (tmp_path / "batching.txt").write_text(batching_parameters_text())
    for server_type in ("ps", "entry"):
        models_file = tmp_path / f"{server_type}.models"
        models_file.write_text(model_config_text(fixed_model_configs(config, server_type)))
        command = serve_command(
            config,
            server_type,
            model_config_file=str(models_file),
            listen_address=host.listen_address,
            addresses_file=str(tmp_path / "addresses.json"),
            batching_parameters_file=str(tmp_path / "batching.txt"),
        )
        children.append(subprocess.Popen(command))
    entry = host.reachable_address(config.ports.entry.tfs_entry_port or 0)

    def is_available() -> bool:
        try:
            return client.status()[0].state == "AVAILABLE"
        except MonolithError:
            return False  # the port is not open yet

    with mt.serving.Client(entry, model="entry", timeout_s=60) as client:
        wait_until(is_available, children)
        scores = next(iter(client.score(as_example_batch(), "example_batch").values()))
    np.testing.assert_allclose(scores.reshape(-1), export[1], atol=1e-6, rtol=0)
