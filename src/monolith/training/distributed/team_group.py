"""The connections of workers that step together: one group of ``torch.distributed`` per meeting, beside no other.

Nothing here is process-wide, so a group that has lost a worker is let go and another one is made.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from monolith.core.errors import ClusterError
from monolith.training.synchronous.peers import Channel

__all__ = ["TeamChannels", "TeamPlace", "connect_room", "make_channels", "open_room"]

Room = Any
"""A ``torch.distributed`` store: the type is not public."""

_REACH_S = 10.0
_CONNECT_S = 30.0  # all are there when they connect; who waits longer waits for a worker that has just died
_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamPlace:
    """One worker among those that step together."""

    index: int
    """Which; 0 is the chief."""
    size: int
    """How many there are."""
    bind_host: str = "127.0.0.1"
    """Interface that the others reach it on."""
    advertised_host: str = ""
    """The name of that interface, where ``bind_host`` means all of them."""
    bind_port: int = 0
    """Where the chief waits for the others; 0 = any free port."""
    accelerator: str = "cpu"
    """``cuda`` adds up gradients over NCCL."""
    timeout_s: float = 300.0
    """How long a worker waits for the others in one call."""
    meeting_timeout_s: float = 7200.0
    """How long a meeting waits for everybody."""

    @property
    def interface(self) -> str:
        """A name of the interface; empty = torch's choice."""
        return self.advertised_host if self.bind_host in _WILDCARDS else self.bind_host


@dataclass(slots=True)
class TeamChannels:
    """How one worker talks to the others."""

    words: Channel
    """Numbers and bytes, in the computer's memory."""
    gradients: Channel
    """Gradients, where the weights are."""

    def close(self) -> None:
        """Let go of the others, who see it."""
        self.words.close()
        self.gradients.close()


def open_room(place: TeamPlace) -> tuple[Room, int]:
    """Begin to listen, at the chief; return what all workers write to, and the port.

    Raises:
        ClusterError: The port is taken, or the interface is none of this machine.
    """
    try:
        listening = socket.create_server((place.bind_host, place.bind_port), family=_family(place.bind_host))
    except OSError as error:
        raise ClusterError(
            f"workers cannot meet at bind_host {place.bind_host!r}, bind_port {place.bind_port} ({error}); give the "
            "chief an interface of its machine, and bind_port 0 for any free port"
        ) from error
    port: int = listening.getsockname()[1]
    room = dist.TCPStore(  # type: ignore[attr-defined]
        place.interface or "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=_REACH_S),
        master_listen_fd=listening.detach(),
        use_libuv=False,  # the other kind of listener takes no socket, and listens on every interface
    )
    return room, port


def connect_room(host: str, port: int) -> Room:
    """Reach the room of the chief; a ``RuntimeError`` says that it is not there."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_REACH_S)
    )


def make_channels(room: Room, place: TeamPlace) -> TeamChannels:
    """Connect with all others, who do the same; a ``RuntimeError`` says that one of them is gone."""
    gloo: Any = dist.ProcessGroupGloo
    timeout = timedelta(seconds=place.timeout_s)
    options = gloo._Options()
    options._timeout = min(timeout, timedelta(seconds=_CONNECT_S))
    options._devices = [
        gloo.create_device(hostname=place.interface) if place.interface else gloo.create_default_device()
    ]
    cpu = torch.device("cpu")

    def channel(group: Any, device: torch.device) -> Channel:
        return Channel(group, place.index, place.size, device)

    group = gloo(_prefixed("words", room), place.index, place.size, options)
    group._set_default_timeout(timeout)
    words = channel(group, cpu)
    if place.accelerator != "cuda":
        return TeamChannels(words, words)
    return TeamChannels(words, channel(_nccl_group(room, place, timeout), torch.device("cuda")))


def _nccl_group(room: Room, place: TeamPlace, timeout: timedelta) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # else a lost worker ends this process, too
    options = nccl.Options()
    options._timeout = timeout
    return nccl(_prefixed("gradients", room), place.index, place.size, options)


def _prefixed(name: str, room: Room) -> Room:
    prefixed: Callable[..., Room] = dist.PrefixStore  # type: ignore[attr-defined]
    return prefixed(name, room)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
