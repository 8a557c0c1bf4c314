"""Which rank this process is, and where rank 0 waits: read from the variables that launchers set.

Knows torchrun, Open MPI, Horovod and BytePS by their variables, and nothing of torch. Variables of two launchers may be
there together (``mpirun`` beside ``torchrun``), as long as they say the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from monolith.core.errors import ConfigError

__all__ = ["RankPlace", "read_place", "told_ranks"]

logger = logging.getLogger(__name__)

DEFAULT_PORT = 29500
"""Where rank 0 waits when all ranks are on one machine and nothing says another port; torch's own choice."""

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
class RankPlace:
    """One process among those that step together."""

    rank: int = 0
    """Its number; 0 is the chief."""
    size: int = 1
    """How many there are."""
    local_rank: int = 0
    """Its number on its machine: which GPU is its own."""
    local_size: int = 1
    """How many are on its machine."""
    host: str = "127.0.0.1"
    """Where rank 0 waits for the others."""
    port: int = 0
    """At which port; 0 = any free one, which only a single rank can have."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank is {self.rank} of {self.size} ranks; give 0 to the number of ranks - 1")
        if not 0 <= self.local_rank < self.local_size:
            raise ConfigError(
                f"local rank is {self.local_rank} of {self.local_size} on this machine; give 0 to their number - 1"
            )
        if self.local_size > self.size:
            raise ConfigError(f"there are {self.local_size} ranks on this machine and {self.size} in all")


def told_ranks(environment: Mapping[str, str]) -> str | None:
    """Return the launcher that made this process one of several ranks; None when it is alone, or nothing fits."""
    try:
        return next((name for name, found in _found(environment).items() if found.size > 1), None)
    except ConfigError:  # somebody else's variables
        return None


def read_place(environment: Mapping[str, str]) -> RankPlace:
    """Return the place that the environment tells; with nothing in it, that of a rank alone.

    >>> read_place({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2222"}).host
    '10.0.0.1'

    Raises:
        ConfigError: A variable is missing or no number, two launchers contradict each other, or nothing says where rank
            0 of several machines is.
    """
    role = environment.get("DMLC_ROLE", "worker").strip()
    if "DMLC_WORKER_ID" not in environment and role != "worker":
        raise ConfigError(f"DMLC_ROLE is {role!r}; the ranks hold the tables themselves: start workers only")
    found = _found(environment)
    if not found:
        logger.warning("nothing in the environment says which rank this is; it trains alone, as rank 0 of 1")
        return RankPlace()
    (first, place), *others = found.items()
    for name, other in others:
        if (other.rank, other.size) != (place.rank, place.size):
            raise ConfigError(
                f"{first} says that this is rank {place.rank} of {place.size}, {name} that it is rank {other.rank} of "
                f"{other.size}; unset the variables of one of them"
            )
    host, port = _meeting_point(environment, place)
    return RankPlace(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        host=host,
        port=port,
    )


def _found(environment: Mapping[str, str]) -> dict[str, RankPlace]:
    """Return what each launcher says that says anything."""
    found = {
        launcher: _read(environment, launcher, names)
        for launcher, names in _LAUNCHERS.items()
        if names[0] in environment or names[1] in environment
    }
    if _BYTEPS[0] in environment:
        found["BytePS"] = _read_byteps(environment)
    return found


def _read(environment: Mapping[str, str], launcher: str, names: tuple[str, ...]) -> RankPlace:
    rank, size = (_number(environment, name, launcher) for name in names[:2])
    local_rank = _number(environment, names[2], launcher, 0)
    local_size = _number(environment, names[3], launcher, local_rank + 1)
    return RankPlace(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def _read_byteps(environment: Mapping[str, str]) -> RankPlace:
    """Machines are numbered, and the ranks on each machine."""
    machine, machines = (_number(environment, name, "BytePS") for name in _BYTEPS[:2])
    local_rank, local_size = (
        _number(environment, name, "BytePS", default) for name, default in zip(_BYTEPS[2:], (0, 1), strict=True)
    )
    return RankPlace(
        rank=machine * local_size + local_rank, size=machines * local_size, local_rank=local_rank, local_size=local_size
    )


def _number(environment: Mapping[str, str], name: str, launcher: str, default: int | None = None) -> int:
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text:
        raise ConfigError(f"{name} is not set, though other variables of {launcher} are; set it, or unset those")
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}; give a whole number from 0 up")
    return int(text)


def _meeting_point(environment: Mapping[str, str], place: RankPlace) -> tuple[str, int]:
    for host_name, port_name in _HOSTS:
        if host := environment.get(host_name, "").strip().strip("'\""):
            return host, _port(environment, port_name)
    if place.size == 1:
        return "127.0.0.1", 0
    if place.local_size == place.size:
        return "127.0.0.1", _port(environment, "MASTER_PORT")
    raise ConfigError(
        f"MASTER_ADDR is not set, and {place.size - place.local_size} of {place.size} ranks are on other machines; set "
        "it to the machine of rank 0, for example: mpirun -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500"
    )


def _port(environment: Mapping[str, str], name: str) -> int:
    port = _number(environment, name, "the meeting point", DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise ConfigError(f"{name} is {port}; give a port from 1 to 65535")
    return port
