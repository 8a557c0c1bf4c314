"""What a run hands to the processes that it starts, as variables. A pure function: nothing is set here."""

from __future__ import annotations

import json
from typing import Any

from monolith.core.config import changed_fields, variable_of
from monolith.training.config.run import RunConfig, RunnerConfig

__all__ = ["environment_exports"]


def environment_exports(config: RunConfig) -> dict[str, str]:
    """Return the variables for a child process: it then loads the same configuration, unless its flags say otherwise.

    These are ``MONOLITH_<FIELD>`` for each field that differs from its default, ``MONOLITH_METRIC_PREFIX`` for the
    names of metrics, and ``TF_GRPC_WORKER_CACHE_THREADS``, which TensorFlow reads.

    >>> environment_exports(RunConfig(deep_insight_name="ctr", seed=7))
    {'MONOLITH_SEED': '7', 'MONOLITH_DEEP_INSIGHT_NAME': 'ctr', 'MONOLITH_METRIC_PREFIX': 'monolith.training.ctr'}
    """
    exports = {variable_of(name): _text(value) for name, value in changed_fields(config).items()}
    exports["MONOLITH_METRIC_PREFIX"] = ".".join(filter(None, ["monolith.training", config.deep_insight_name]))
    if isinstance(config, RunnerConfig) and config.tf_grpc_worker_cache_threads is not None:
        exports["TF_GRPC_WORKER_CACHE_THREADS"] = str(config.tf_grpc_worker_cache_threads)
    return exports


def _text(value: Any) -> str:
    """The spelling of a value that ``core.config.load`` reads back."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
