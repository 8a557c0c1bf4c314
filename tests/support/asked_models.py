"""The models whose states an agent asks its servers for."""

from __future__ import annotations

import pytest

from monolith.agent.messages import ModelVersionStatus
from monolith.agent.server_monitor import ServerClient

__all__ = ["note_asked_models"]


def note_asked_models(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each model that a server is asked for from now on."""
    asked: list[str] = []
    probe_status = ServerClient.probe_status

    def probe(client: ServerClient, name: str, version: int | None = None) -> ModelVersionStatus:
        asked.append(name)
        return probe_status(client, name, version)

    patch.setattr(ServerClient, "probe_status", probe)
    return asked
