"""A folder without versions: the server names its contents and the remedy, immediately and every minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.serving import ModelConfig
from monolith.serving.versions.base_path_report import describe_base_path
from monolith.serving.versions.hosted_models import HostedModels
from monolith.testing import FakeClock
from monolith.testing.fakes.linear_model import LinearModel, write_version


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _make_training(root: Path) -> Path:
    _touch(root / "run/job.json")
    _touch(root / "run/checkpoints/step-000000001/manifest.json")
    return root / "run"


def _make_exported(root: Path) -> Path:
    (root / "run/exported_models/7").mkdir(parents=True)
    return _make_training(root)


def _make_distributed(root: Path) -> Path:
    (root / "run/exported_models/entry/7").mkdir(parents=True)
    return _make_training(root)


def _make_version(root: Path) -> Path:
    _touch(root / "exported_models/7/manifest.json")
    return root / "exported_models/7"


def _make_checkpoint(root: Path) -> Path:
    return _make_training(root) / "checkpoints/step-000000001"


def _make_file(root: Path) -> Path:
    _touch(root / "model.bin")
    return root / "model.bin"


def _make_empty(root: Path) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def _make_misspelt(root: Path) -> Path:
    (root / "exported_models").mkdir()
    return root / "exported_model"


def _make_other(root: Path) -> Path:
    for index in range(8):
        _touch(root / f"photos/{index}.jpg")
    return root / "photos"


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (_make_training, ("is a model folder of a training without an export", "monolith export --model-dir")),
        (_make_exported, ("is a model folder of a training; serve '", "run/exported_models'")),
        (_make_distributed, ("is a model folder of a training; serve '", "run/exported_models/entry'")),
        (_make_version, ("is one version of a model; serve its parent", "exported_models'")),
        (_make_checkpoint, ("is a checkpoint, expected an export",)),
        (_make_file, ("is a file or below one",)),
        (_make_empty, ("is empty", "run monolith export")),
        (_make_misspelt, ("does not exist; did you mean '", "exported_models'?")),
        (_make_other, ("it has '0.jpg', '1.jpg'", "and 3 more")),
    ],
)
def test_a_folder_without_versions_is_described_with_the_remedy(
    make: Callable[[Path], Path], texts: tuple[str, ...], tmp_path: Path
) -> None:
    described = describe_base_path(make(tmp_path))
    assert all(text in described for text in texts), described


def test_the_server_warns_immediately_and_every_minute_until_a_version_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    models = HostedModels(LinearModel, clock=clock)
    base = tmp_path / "exported_models"

    def warnings() -> int:
        return sum("no version to serve model=m" in record.getMessage() for record in caplog.records)

    try:
        with caplog.at_level(logging.WARNING):
            models.configure([ModelConfig(name="m", base_path=base)])
            assert warnings() == 1
            assert "does not exist" in caplog.text
            models.poll()
            assert warnings() == 1
            clock.advance_s(61)
            models.poll()
            assert warnings() == 2
            write_version(base, 1)
            clock.advance_s(61)
            models.poll()
            assert models.wait_until_settled(60)
            assert warnings() == 2
    finally:
        models.close()
