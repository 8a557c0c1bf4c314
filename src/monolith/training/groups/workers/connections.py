"""Connections of workers that step together: one process group of ``torch.distributed`` per rendezvous.

No group is process-wide: one that has lost a worker is closed, and the next rendezvous makes another one.
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
from monolith.embedding.ranks.channel import Channel

__all__ = ["GroupAddress", "Store", "WorkerChannels", "connect_store", "make_channels", "open_store"]

Store = Any
"""A key-value store of ``torch.distributed``, whose type is not public."""

_REACH_S = 10.0
_CONNECT_S = 30.0  # all workers are present when they connect: a longer wait is for a worker that has just died
_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """The address of one worker among those that step together."""

    index: int
    """The index of this worker; 0 is the chief."""
    size: int
    """The number of workers."""
    bind_host: str = "127.0.0.1"
    """Interface on which the others reach this worker."""
    advertised_host: str = ""
    """The name of that interface, where ``bind_host`` means all of them."""
    bind_port: int = 0
    """Port of the chief's store; 0 = any free port."""
    accelerator: str = "cpu"
    """``cuda`` sums gradients over NCCL."""
    timeout_s: float = 300.0
    """Timeout of one collective call."""
    rendezvous_timeout_s: float = 7200.0
    """Timeout of the rendezvous of all workers."""

    @property
    def interface(self) -> str:
        """The name of the interface; empty = torch's choice."""
        return self.advertised_host if self.bind_host in _WILDCARDS else self.bind_host


@dataclass(slots=True)
class WorkerChannels:
    """The channels from one worker to the others."""

    words: Channel
    """Numbers and bytes, in host memory."""
    gradients: Channel
    """Gradients, on the device of the weights."""

    def close(self) -> None:
        """Close the connections; the other workers notice."""
        self.words.close()
        self.gradients.close()


def open_store(address: GroupAddress) -> tuple[Store, int]:
    """Open the store of the chief, which all workers use; return it and its port.

    Raises:
        ClusterError: The port is in use, or the interface does not belong to this machine.
    """
    try:
        listening = socket.create_server((address.bind_host, address.bind_port), family=_family(address.bind_host))
    except OSError as error:
        raise ClusterError(
            f"the chief cannot listen at bind_host {address.bind_host!r}, bind_port {address.bind_port} ({error}); "
            "give an interface of its machine, and bind_port 0 for any free port"
        ) from error
    port: int = listening.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address.interface or "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=_REACH_S),
        master_listen_fd=listening.detach(),
        use_libuv=False,  # the other kind of listener takes no socket, and listens on every interface
    )
    return store, port


def connect_store(host: str, port: int) -> Store:
    """Connect to the store of the chief; raise ``RuntimeError`` when it cannot be reached."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_REACH_S)
    )


def make_channels(store: Store, address: GroupAddress) -> WorkerChannels:
    """Connect all workers; every worker calls it. Raise ``RuntimeError`` when one of them has ended."""
    gloo: Any = dist.ProcessGroupGloo
    timeout = timedelta(seconds=address.timeout_s)
    options = gloo._Options()
    options._timeout = min(timeout, timedelta(seconds=_CONNECT_S))
    options._devices = [
        gloo.create_device(hostname=address.interface) if address.interface else gloo.create_default_device()
    ]
    cpu = torch.device("cpu")

    def channel(group: Any, device: torch.device) -> Channel:
        return Channel(group, address.index, address.size, device)

    group = gloo(_prefix("words", store), address.index, address.size, options)
    group._set_default_timeout(timeout)
    words = channel(group, cpu)
    if address.accelerator != "cuda":
        return WorkerChannels(words, words)
    return WorkerChannels(words, channel(_nccl_group(store, address, timeout), torch.device("cuda")))


def _nccl_group(store: Store, address: GroupAddress, timeout: timedelta) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # otherwise a lost worker ends this process too
    options = nccl.Options()
    options._timeout = timeout
    return nccl(_prefix("gradients", store), address.index, address.size, options)


def _prefix(name: str, store: Store) -> Store:
    prefixed: Callable[..., Store] = dist.PrefixStore  # type: ignore[attr-defined]
    return prefixed(name, store)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
