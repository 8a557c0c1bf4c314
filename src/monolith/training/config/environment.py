"""What a run hands to the processes that it starts, as variables. A pure function: nothing is set here."""

from __future__ import annotations

import json
from typing import Any

from monolith.core.config import ENVIRONMENT_PREFIX, changed_fields
from monolith.training.config.run import RunConfig, RunnerConfig

__all__ = ["environment_exports"]

# Fields whose variable is another program's, with its spelling.
_FOREIGN = {
    "tf_grpc_worker_cache_threads": "TF_GRPC_WORKER_CACHE_THREADS",
    "monolith_grpc_worker_service_handler_multiplier": "MONOLITH_GRPC_WORKER_SERVICE_HANDLER_MULTIPLIER",
}


def environment_exports(config: RunConfig) -> dict[str, str]:
    """Return the variables for a child process: it then loads the same configuration, unless its flags say otherwise.

    These are ``MONOLITH_<FIELD>`` for each field that differs from its default, ``MONOLITH_METRIC_PREFIX`` for the
    names of metrics, and the two thread settings that programs of the original read.

    >>> environment_exports(RunConfig(deep_insight_name="ctr", seed=7))
    {'MONOLITH_SEED': '7', 'MONOLITH_DEEP_INSIGHT_NAME': 'ctr', 'MONOLITH_METRIC_PREFIX': 'monolith.training.ctr'}
    """
    exports = {ENVIRONMENT_PREFIX + name.upper(): _text(value) for name, value in changed_fields(config).items()}
    exports["MONOLITH_METRIC_PREFIX"] = ".".join(filter(None, ["monolith.training", config.deep_insight_name]))
    if isinstance(config, RunnerConfig):
        given = {variable: getattr(config, name) for name, variable in _FOREIGN.items()}
        exports |= {variable: _text(value) for variable, value in given.items() if value is not None}
    return exports


def _text(value: Any) -> str:
    """The spelling of a value that ``core.config.load`` reads back."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
