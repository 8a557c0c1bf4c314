"""Settings that do not fit ranks are refused."""

from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.roles.rank import run_rank

PAIR = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_ps": 2}, "num_ps is 2 with enable_sync_training"),
        ({"discovery_type": "file"}, "discovery_type is 'file' with enable_sync_training"),
        ({"server_type": "ps"}, "server_type is 'ps' with enable_sync_training"),
        ({"only_feature_engineering": True}, "only_feature_engineering is True"),
        ({"enable_partial_sync_training": True}, "enable_sync_training and enable_partial_sync_training are both True"),
    ],
)
def test_settings_that_contradict_ranks_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ClusterJobConfig(enable_sync_training=True, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": 3}, "num_workers is 3, expected 2"),
        ({"num_workers": 5, "index": 4}, "index is 4, expected 1"),
        ({"data": "-"}, "2 ranks cannot share standard input"),
    ],
)
def test_an_index_that_contradicts_the_launcher_is_refused_before_the_rendezvous(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        run_rank(ClusterJobConfig(enable_sync_training=True, **options), PAIR)
