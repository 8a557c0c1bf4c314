"""The commands of docs/guide/fleet.md run in order, from an empty folder to a rolling update."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import monolith as mt
from agent_fleet import Trainer, as_example_batch, is_same, wait_until
from monolith.core.errors import MonolithError
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "fleet.md"


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


class Reader:
    """A person who follows the page in a folder."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder = folder
        self.variables = {"ZK": zookeeper, "MY_HOST_IP": "127.0.0.1"}
        self.agents: list[subprocess.Popen[bytes]] = []

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace("${ZK}", self.variables["ZK"]))

    def run(self, line: str) -> str:
        for name in ("ZK", "ENTRY"):
            line = line.replace(f"${name}", self.variables.get(name, ""))
        words = shlex.split(line.removesuffix("&"))
        begin = words.index("monolith")
        settings = dict(word.split("=", 1) for word in words[:begin])
        command = [sys.executable, "-m", *words[begin:]]
        environment = {**os.environ, **self.variables, **settings}
        if line.endswith("&"):
            with (self.folder / "agents.log").open("ab") as log:
                agent = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
            self.agents.append(agent)
            return ""
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def entry(self) -> str:
        rows = json.loads(self.run("monolith agent status --zk-servers $ZK --bzid shop --json"))
        return next((row["address"] for row in rows if row["sub_model"] == "entry"), "")

    def close(self) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            assert agent.wait(90) == 0


def score(address: str) -> np.ndarray | None:
    try:
        with mt.serving.Client(address, model="deepfm:entry", timeout_s=30) as client:
            return next(iter(client.score(as_example_batch(), "example_batch").values())).reshape(-1)
    except MonolithError:
        return None


@pytest.mark.slow
def test_the_page_leads_from_nothing_to_a_rolling_update(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    page = PAGE.read_text()
    files = re.findall(r'```text title="(.+?)"\n(.+?)```', page, re.DOTALL)
    steps = [block.strip().splitlines() for block in re.findall(r"```sh\n(.+?)```", page, re.DOTALL)]
    assert [name for name, _ in files] == ["ps.conf", "entry.conf"]
    start, publish, look, profile, unpublish = steps
    trainer = Trainer(tmp_path / "models")
    first = trainer.export(1)
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "one").write_bytes(mt.data.Framing(sort_id=False).frame(as_example_batch()))
    reader = Reader(tmp_path, zookeeper.address)
    for name, text in files:
        reader.write(name, text)
    try:
        for line in [*start, *publish]:
            reader.run(line)
        wait_until(reader.entry, "the entry is published", pause_s=0.5)
        address = reader.variables["ENTRY"] = reader.entry()
        scores = score(address)
        assert scores is not None
        assert is_same(scores, first)
        table = reader.run(look[0])
        header = next(line for line in page.splitlines() if line.startswith("model "))
        assert table.splitlines()[0].split() == header.split(), "the page shows the columns of the table"
        assert {"ps_0", "ps_1", "entry"} <= set(table.split())
        assert "p99=" in reader.run(profile[0])
        second = trainer.export(2)

        def is_new() -> bool:
            answer = score(address)
            assert answer is not None, "no request fails during the update"
            return is_same(answer, second)

        wait_until(is_new, "the fleet serves version 2")
        reader.run(unpublish[0])
        wait_until(lambda: not reader.entry(), "the entry left", pause_s=0.5)
    except AssertionError:
        print((tmp_path / "agents.log").read_text()[-6000:])
        raise
    finally:
        reader.close()
