"""``stage_model_folder``: replaces the URL of a model folder by its local staging folder.

The settings of a process are staged once, where the process starts. All later code sees a local path, and
:mod:`monolith.artifacts.remote_folder` finds the URL of that path again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from monolith.artifacts.remote_folder import open_folder
from monolith.core.config_sections import replace_settings
from monolith.core.storage import is_url

__all__ = ["stage_model_folder"]

C = TypeVar("C")


def stage_model_folder(config: C, model_dir: str | Path) -> C:
    """Return settings whose ``model_dir`` is local, with the present checkpoints of a URL.

    Args:
        config: Settings with the field ``model_dir``, at any depth.
        model_dir: Its value.

    Raises:
        ConfigError: The driver of the URL is missing.
        ArtifactError: The URL cannot be read.
    """
    if not is_url(str(model_dir)):
        return config
    settings: dict[str, Any] = {"model_dir": str(open_folder(str(model_dir)))}
    return replace_settings(config, **settings)
