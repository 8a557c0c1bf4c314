"""The rank of a process, by the variables of each launcher."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.training.groups.ranks.rank_env import RankInfo, detect_launcher, read_rank_env

MEET = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2222"}
TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")}  # noqa: B905
HOROVOD = {f"HOROVOD_{name}": value for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "3412")}  # noqa: B905
BYTEPS = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "DMLC_NUM_WORKER": "2", "BYTEPS_LOCAL_RANK": "1",
          "BYTEPS_LOCAL_SIZE": "2"}  # fmt: skip
PLACE = RankInfo(rank=3, size=4, local_rank=1, local_size=2, host="10.0.0.1", port=2222)


@pytest.mark.parametrize("variables", [TORCH, MPI, HOROVOD, BYTEPS, {**TORCH, **MPI}, {**HOROVOD, **MPI}])
def test_every_launcher_gives_the_same_rank(variables: dict[str, str]) -> None:
    assert read_rank_env({**variables, **MEET}) == PLACE
    assert detect_launcher(variables) is not None


def test_byteps_and_mlp_give_the_address_of_rank_0() -> None:
    found = read_rank_env({**BYTEPS, "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "2222"})
    assert found == PLACE
    found = read_rank_env({**MPI, "MLP_WORKER_0_HOST": "'10.0.0.1'", "MLP_WORKER_0_PORT": "2222"})
    assert found == PLACE


def test_ranks_of_one_machine_meet_there() -> None:
    found = read_rank_env({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                        "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})  # fmt: skip
    assert (found.host, found.port) == ("127.0.0.1", 29500)


def test_without_a_launcher_the_process_trains_alone_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_rank_env({}) == RankInfo()
    assert "training alone rank=0" in caplog.text
    assert detect_launcher({}) is None
    assert detect_launcher({"RANK": "0"}) is None
    assert detect_launcher({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set, and other variables of torchrun are"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one', expected a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1', expected a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MEET}, "rank is 2 of 2 ranks"),
        ({**TORCH, "LOCAL_RANK": "2", **MEET}, "local rank is 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}, "local size is 2, expected at most the 1 ranks"),
        ({**TORCH, **MPI, "OMPI_COMM_WORLD_SIZE": "8"}, "torchrun sets rank 3 of 4, Open MPI sets rank"),
        (TORCH, "MASTER_ADDR is not set, and 2 of 4 ranks are on other machines"),
        ({**TORCH, "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE is 'server'"),
    ],
)
def test_a_wrong_environment_is_refused_in_one_sentence(variables: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_rank_env(variables)
