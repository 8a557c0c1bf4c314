"""Model servers for the tests of this folder, with linear models; they live as long as the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from monolith.serving import Client, ModelConfig, ModelServer, ServingConfig
from monolith.testing.linear_model import LinearModel, write_version


class Served:
    """A server, its folder and the models that it has loaded."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.loaded: list[LinearModel] = []
        models = settings.pop("models", None)
        if models is None and "model_config_file" not in settings:
            models = [ModelConfig(name="m", base_path=folder / "m")]
        config = {"port": 0, "rest_port": 0, "version_poll_s": 0.0, "load_retries": 0, **settings}
        self.server = ModelServer(ServingConfig(models=models or (), **config), self._load)

    def _load(self, folder: Path) -> LinearModel:
        model = LinearModel(folder)
        self.loaded.append(model)
        return model

    def write(self, version: int, **content: Any) -> None:
        write_version(self.folder / "m", version, **content)

    def poll(self) -> None:
        self.server.models.poll()
        assert self.server.models.wait_until_settled(60)
        assert self.server.models.wait_until_unloaded(60)

    def client(self, transport: str = "grpc", **settings: Any) -> Client:
        address = self.server.address if transport == "grpc" else f"http://{self.server.rest_address}"
        return Client(address, model="m", **settings)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(weights: dict[int, float] | None = None, **settings: Any) -> Served:
            if not (tmp_path / "m").exists():
                write_version(tmp_path / "m", 1, bias=0.5, age_weight=0.25, weights=weights or {7: 2.0, 8: 4.0})
            served = Served(tmp_path, settings)
            stack.callback(served.server.stop, 0.0)
            served.server.start()
            assert served.server.models.wait_until_settled(60)
            return served

        yield start
