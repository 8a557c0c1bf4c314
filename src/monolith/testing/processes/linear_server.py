"""A model server with linear models in this process, on free loopback ports: for tests and examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from monolith.serving.api.client import Client
from monolith.serving.config import ServingConfig
from monolith.serving.server import ModelServer
from monolith.serving.versions.model_config import ModelConfig
from monolith.testing.fakes.linear_model import LinearModel, write_version

__all__ = ["LinearServer"]

_LONG_S = 60.0


class LinearServer:
    """Serves the model ``m``, whose versions are in ``folder / "m"``.

    Args:
        folder: Folder of the models.
        models: Further models.
        settings: Fields of ``ServingConfig``. By default the server scans folders only when ``poll`` is called.
    """

    def __init__(self, folder: Path, models: Sequence[ModelConfig] | None = None, **settings: Any) -> None:
        self.folder = folder
        self.loaded: list[LinearModel] = []
        """Every version that was loaded, in order."""
        if models is None and settings.get("model_config_file") is None:
            models = [ModelConfig(name="m", base_path=folder / "m")]
        config: dict[str, Any] = {
            "port": 0,
            "rest_port": 0,
            "version_poll_s": 0.0,
            "load_retries": 0,
            "allow_assign": True,
            "allow_reload": True,
        }
        config |= settings
        self.server = ModelServer(ServingConfig(models=models or (), **config), self._load)

    def start(self) -> None:
        """Open the ports and wait for the models."""
        self.server.start()
        if not self.server.models.wait_until_settled(_LONG_S):
            raise TimeoutError("models are still loading")

    def write(self, version: int, **content: Any) -> None:
        """Write a version of ``m``."""
        write_version(self.folder / "m", version, **content)

    def poll(self) -> None:
        """Look for versions, and wait until they are loaded and the old ones gone."""
        self.server.models.poll()
        is_done = self.server.models.wait_until_settled(_LONG_S)
        if not (is_done and self.server.models.wait_until_unloaded(_LONG_S)):
            raise TimeoutError("models are still loading or in use")

    def client(self, transport: Literal["grpc", "rest"] = "grpc", **settings: Any) -> Client:
        """Return a client that asks ``m``."""
        address = self.server.address if transport == "grpc" else f"http://{self.server.rest_address}"
        return Client(address, **{"model": "m", **settings})

    def _load(self, folder: Path) -> LinearModel:
        model = LinearModel(folder)
        self.loaded.append(model)
        return model
