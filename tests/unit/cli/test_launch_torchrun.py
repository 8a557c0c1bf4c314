"""The command that ``monolith launch torchrun`` starts."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli.launch_torchrun import command_of
from monolith.cli.main import app
from monolith.core.errors import ConfigError


def test_ranks_of_one_machine_meet_at_any_free_port() -> None:
    command = command_of(["train", "--task", "deepfm"], nproc=2)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert command[3:6] == ["--nproc-per-node", "2", "--standalone"]
    assert command[6:] == [
        "-m", "monolith", "--log-level", "INFO", "train", "--enable-sync-training", "--task", "deepfm",
    ]  # fmt: skip


def test_several_machines_meet_at_the_configured_address() -> None:
    command = command_of(["train"], nproc=2, nnodes=3, node_rank=1, master_addr="10.0.0.1", master_port=2222)
    assert command[5:13] == [
        "--nnodes", "3", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "2222",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "options", "text"),
    [
        (["evaluate"], {}, "the command is 'evaluate'"),
        ([], {}, "the command is ''"),
        (["train"], {"nnodes": 2}, "master_port is 0"),
        (["train"], {"nnodes": 2, "node_rank": 2, "master_port": 1}, "node_rank is 2"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(command: list[str], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        command_of(command, nproc=2, **options)


def test_ranks_that_would_train_alone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["train", "--task", "deepfm", "--data", "nothing.parquet"])
    assert isinstance(result.exception, ConfigError)
    assert "torchrun started this process as one of several ranks" in str(result.exception)


def test_one_machine_with_a_port_meets_at_that_port() -> None:
    command = command_of(["train"], nproc=2, master_addr="10.0.0.1", master_port=2222)
    assert "--standalone" not in command
    assert command[9:13] == ["--master-addr", "10.0.0.1", "--master-port", "2222"]
