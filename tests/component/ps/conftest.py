"""Servers for the tests of this folder: they live as long as the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from monolith.embedding import Adagrad, Constant, Sgd, SliceSpec, TableSpec
from monolith.ps import PsClient, RemoteStore, ServerConfig
from monolith.testing.processes.ps_servers import PsServers

USER = TableSpec("user", [SliceSpec(2, optimizer=Sgd(1.0))], deterministic=True)
ITEM = TableSpec(
    "item", [SliceSpec(3, optimizer=Adagrad(0.1), initializer=Constant(0.5))], on_miss="initial", deterministic=True
)


@pytest.fixture
def serve() -> Iterator[Callable[..., PsServers]]:
    with ExitStack() as stack:

        def start(count: int = 1, **settings: Any) -> PsServers:
            return stack.enter_context(PsServers(count, ServerConfig(**settings)))

        yield start


@pytest.fixture
def store_of(serve: Callable[..., PsServers]) -> Iterator[Callable[..., RemoteStore]]:
    with ExitStack() as stack:

        def connect(servers: PsServers, specs: Any = (USER, ITEM), **settings: Any) -> RemoteStore:
            return stack.enter_context(RemoteStore(servers.addresses, specs, **settings))

        yield connect


@pytest.fixture
def client_of(serve: Callable[..., PsServers]) -> Iterator[Callable[..., PsClient]]:
    with ExitStack() as stack:

        def connect(servers: PsServers, **settings: Any) -> PsClient:
            return stack.enter_context(PsClient(servers.addresses, **settings))

        yield connect
