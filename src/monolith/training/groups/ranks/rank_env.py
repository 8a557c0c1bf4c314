"""The rank of this process and the address of rank 0, read from the environment variables of a launcher.

Reads the variables of torchrun, Open MPI, Horovod and BytePS, and imports no torch. Variables of two launchers may be
set together (``mpirun`` beside ``torchrun``), as long as they agree.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from monolith.core.errors import ConfigError

__all__ = ["RankInfo", "detect_launcher", "read_rank_env"]

logger = logging.getLogger(__name__)

DEFAULT_PORT = 29500
"""Port of rank 0 when all ranks are on one machine and no variable names another; torch's default."""

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "Horovod": tuple(f"HOROVOD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
}
_BYTEPS = ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
_HOSTS = (
    ("MASTER_ADDR", "MASTER_PORT"),
    ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
    ("MLP_WORKER_0_HOST", "MLP_WORKER_0_PORT"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The rank of one process, and the address of rank 0."""

    rank: int = 0
    """The rank of this process; 0 is the chief."""
    size: int = 1
    """The number of ranks."""
    local_rank: int = 0
    """The rank among those of this machine, which selects the GPU."""
    local_size: int = 1
    """The number of ranks on this machine."""
    host: str = "127.0.0.1"
    """Host where rank 0 waits for the others."""
    port: int = 0
    """Port of rank 0; 0 = any free port, which only a single rank can have."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank is {self.rank} of {self.size} ranks, expected 0 to {self.size - 1}")
        if not 0 <= self.local_rank < self.local_size:
            raise ConfigError(
                f"local rank is {self.local_rank} of {self.local_size} here, expected 0 to {self.local_size - 1}"
            )
        if self.local_size > self.size:
            raise ConfigError(f"local size is {self.local_size}, expected at most the {self.size} ranks in all")


def detect_launcher(environment: Mapping[str, str]) -> str | None:
    """Return the launcher that started this process as one of several ranks; None for a process alone."""
    try:
        return next((name for name, info in _read_launchers(environment).items() if info.size > 1), None)
    except ConfigError:  # variables of another program
        return None


def read_rank_env(environment: Mapping[str, str]) -> RankInfo:
    """Return the rank that the environment describes; without variables, rank 0 of 1.

    >>> read_rank_env({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2222"}).host
    '10.0.0.1'

    Raises:
        ConfigError: A variable is missing or invalid, two launchers contradict each other, or no variable names the
            address of rank 0 of several machines.
    """
    role = environment.get("DMLC_ROLE", "worker").strip()
    if "DMLC_WORKER_ID" not in environment and role != "worker":
        raise ConfigError(f"DMLC_ROLE is {role!r}, expected 'worker'; ranks hold the tables, so start workers only")
    infos = _read_launchers(environment)
    if not infos:
        logger.warning("no launcher variables set, training alone rank=0 size=1")
        return RankInfo()
    (first, info), *others = infos.items()
    for name, other in others:
        if (other.rank, other.size) != (info.rank, info.size):
            raise ConfigError(
                f"{first} sets rank {info.rank} of {info.size}, {name} sets rank {other.rank} of {other.size}; unset "
                "the variables of one of them"
            )
    host, port = _address(environment, info)
    return RankInfo(
        rank=info.rank,
        size=info.size,
        local_rank=info.local_rank,
        local_size=info.local_size,
        host=host,
        port=port,
    )


def _read_launchers(environment: Mapping[str, str]) -> dict[str, RankInfo]:
    """Return the rank by each launcher whose variables are set."""
    infos = {
        launcher: _read(environment, launcher, names)
        for launcher, names in _LAUNCHERS.items()
        if names[0] in environment or names[1] in environment
    }
    if _BYTEPS[0] in environment:
        infos["BytePS"] = _read_byteps(environment)
    return infos


def _read(environment: Mapping[str, str], launcher: str, names: tuple[str, ...]) -> RankInfo:
    rank, size = (_number(environment, name, launcher) for name in names[:2])
    local_rank = _number(environment, names[2], launcher, 0)
    local_size = _number(environment, names[3], launcher, local_rank + 1)
    return RankInfo(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _read_byteps(environment: Mapping[str, str]) -> RankInfo:
    """Return the rank by BytePS, which numbers the machines and the ranks on each machine."""
    machine, machines = (_number(environment, name, "BytePS") for name in _BYTEPS[:2])
    local_rank, local_size = (
        _number(environment, name, "BytePS", default) for name, default in zip(_BYTEPS[2:], (0, 1), strict=True)
    )
    return RankInfo(
        rank=machine * local_size + local_rank, size=machines * local_size, local_rank=local_rank, local_size=local_size
    )


def _number(environment: Mapping[str, str], name: str, launcher: str, default: int | None = None) -> int:
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text:
        raise ConfigError(f"{name} is not set, and other variables of {launcher} are; set it, or unset those")
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, expected a whole number from 0 up")
    return int(text)


def _address(environment: Mapping[str, str], info: RankInfo) -> tuple[str, int]:
    for host_name, port_name in _HOSTS:
        if host := environment.get(host_name, "").strip().strip("'\""):
            return host, _port(environment, port_name)
    if info.size == 1:
        return "127.0.0.1", 0
    if info.local_size == info.size:
        return "127.0.0.1", _port(environment, "MASTER_PORT")
    raise ConfigError(
        f"MASTER_ADDR is not set, and {info.size - info.local_size} of {info.size} ranks are on other machines; set "
        "it to the machine of rank 0, for example: mpirun -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500"
    )


def _port(environment: Mapping[str, str], name: str) -> int:
    port = _number(environment, name, "the rendezvous", DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise ConfigError(f"{name} is {port}, expected a port from 1 to 65535")
    return port
