"""Measure the sub-models of an export, for the scheduler.

Main type: ``measure_model``. Exports of Monolith state their sizes in the manifest; other exports are measured file
by file, through ``core.storage``, so URLs work too. Rows of a checkpoint that lie beside the export add to their
``ps_<i>``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from monolith.agent.export_names import find_sub_models
from monolith.agent.model_configs import versions_in
from monolith.artifacts.checkpoint_manifest import MANIFEST
from monolith.artifacts.export_folder import STATE_FILE
from monolith.core.durable_files import unseal
from monolith.core.errors import ConfigError
from monolith.core.storage import file_bytes, is_file, is_folder, list_names, open_file, walk_files

__all__ = ["SubModelSize", "measure_model"]

logger = logging.getLogger(__name__)

_CHECKPOINT = re.compile(r'^\s*model_checkpoint_path:\s*"([^"]+)"', re.MULTILINE)
_EXPORT = re.compile(r'entries\s*\{\s*export_dir:\s*"([^"]+)"\s*global_step:\s*(\d+)\s*\}')
_ASSET = re.compile(r".+_(\d+)-\d+-of-\d+")


@dataclass(frozen=True, slots=True)
class SubModelSize:
    """Size of one sub-model."""

    bytes: int
    path: str
    """Folder of its version."""


def measure_model(model_dir: str, ckpt: str | None = None, version: int | None = None) -> dict[str, SubModelSize]:
    """Return the sizes of the sub-models of an export.

    Args:
        model_dir: Folder with ``entry``, ``ps_0``, ...
        ckpt: Name of a checkpoint such as ``model.ckpt-1234``; None = the newest of the folder above.
        version: The version; None = that of the checkpoint, else the largest that all sub-models have.

    Raises:
        ConfigError: The folder or the version does not exist.
    """
    base = model_dir.rstrip("/")
    sub_models = find_sub_models(base, field="model_dir")
    if not sub_models:
        raise ConfigError(
            f"model_dir is {model_dir!r}, which has no sub-model with a version; give the base of an export"
        )
    parent = base.rpartition("/")[0] or "."
    ckpt = ckpt or _newest_checkpoint(parent)
    if version is None:
        version = _choose_version(base, sub_models, _step(ckpt))
    sizes = {}
    for name in sub_models:
        path = f"{base}/{name}/{version}"
        if not is_folder(path):
            raise ConfigError(
                f"version is {version}, which sub-model {name!r} of {model_dir!r} lacks; give another version"
            )
        sizes[name] = _folder_bytes(path)
    for name, extra in _asset_bytes(parent, ckpt).items():
        if name in sizes:
            sizes[name] += extra
        else:
            logger.warning(
                "checkpoint assets ignored, sub-model not exported sub_model=%s model_dir=%s", name, model_dir
            )
    return {name: SubModelSize(size, f"{base}/{name}/{version}") for name, size in sizes.items()}


def _newest_checkpoint(folder: str) -> str | None:
    text = _text(f"{folder}/checkpoint")
    match = _CHECKPOINT.search(text or "")
    return match[1].rstrip("/").rpartition("/")[2] if match else None


def _step(ckpt: str | None) -> int:
    digits = (ckpt or "").rpartition("-")[2]
    return int(digits) if ckpt and "-" in ckpt and digits.isdigit() else -1


def _choose_version(base: str, sub_models: list[str], step: int) -> int:
    folders = {name: set(versions_in(f"{base}/{name}")) for name in sub_models}
    common = set.intersection(*folders.values())
    if step >= 0:
        recorded = [_recorded(f"{base}/{name}") for name in sub_models]
        of_step = {version for version in common if all(state.get(version) == step for state in recorded)}
        common = of_step or common
    if not common:
        listed = ", ".join(f"{name}: {sorted(versions)}" for name, versions in folders.items())
        raise ConfigError(f"sub-models of {base!r} have no version in common ({listed}); export all of them together")
    return max(common)


def _recorded(folder: str) -> dict[int, int]:
    """Return version to step of the export state file; empty without such a file."""
    text = _text(f"{folder}/{STATE_FILE}") or ""
    names = {path.rstrip("/").rpartition("/")[2]: int(step) for path, step in _EXPORT.findall(text)}
    return {int(name): step for name, step in names.items() if name.isdigit()}


def _folder_bytes(path: str) -> int:
    manifest = f"{path}/{MANIFEST}"
    if is_file(manifest):
        try:
            return sum(int(file["bytes"]) for file in unseal((_text(manifest) or "").encode())["files"])
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("manifest unreadable, measuring files path=%s error=%s", manifest, error)
    return sum(file_bytes(f"{path}/{name}") for name in walk_files(path))


def _asset_bytes(folder: str, ckpt: str | None) -> dict[str, int]:
    assets = f"{folder}/{ckpt}.assets"
    sizes: dict[str, int] = {}
    if ckpt is None or not is_folder(assets):
        return sizes
    for name in list_names(assets):
        match = _ASSET.fullmatch(name)
        if match:
            sub_model = f"ps_{int(match[1])}"
            sizes[sub_model] = sizes.get(sub_model, 0) + file_bytes(f"{assets}/{name}")
    return sizes


def _text(path: str) -> str | None:
    if not is_file(path):
        return None
    with open_file(path) as file:
        parts = []
        while part := file.read(1 << 24):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")
