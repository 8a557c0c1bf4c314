from __future__ import annotations

import pytest

from monolith.agent.expected_loading import publish_defect
from monolith.agent.records import PublishMeta


def publish(version: str) -> PublishMeta:
    return PublishMeta(shard_id=0, replica_id=0, model_name="m", sub_models={"entry": f"/models/m/entry/{version}"})


@pytest.mark.parametrize("version", ["0", "7", "9" * 18])
def test_a_publish_of_a_version_of_up_to_18_digits_is_sound(version: str) -> None:
    assert publish_defect(publish(version)) is None


@pytest.mark.parametrize("version", ["", "9" * 19, "-1", "1a", "\u0663"])
def test_a_publish_of_another_version_has_a_defect(version: str) -> None:
    assert "expected <folder>/<version>" in str(publish_defect(publish(version)))
