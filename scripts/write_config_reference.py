"""Write docs/reference/configuration.md and the keywords of configurations from the dataclasses.

``--check`` fails when a file is not current, and writes nothing. A field's meaning is the docstring below it, so the
page and ``--help`` cannot disagree.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from monolith.core.config_fields import ConfigField, config_fields
from monolith.core.config_sections import FlatField, flat_fields
from monolith.ps import ServerConfig
from monolith.serving import ServingConfig
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.config import RunConfig

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
SOURCE = ROOT / "src" / "monolith"

_HEAD = """\
# Configuration

Every field, its default and its meaning. Written by `scripts/write_config_reference.py`; change the docstrings, not
this page. How values are given, and which of them wins, is in the [guide](../guide/configuration.md).

A field `save_checkpoints_steps` is the flag `--save-checkpoints-steps`, the variable
`MONOLITH_SAVE_CHECKPOINTS_STEPS`, and in a file `save_checkpoints_steps:` at the top or below `checkpoint:`.
`RunConfig` holds `run`, the sections up to `push`, and `serving`. `monolith train`, `evaluate` and `predict` take
`task` and `data` too, and `train` also `cluster`.

`num_extra_ps` and `num_redundant_ps` may only be 0; [why](../guide/distributed.md). A setting of the original that has
no effect here is refused, and the error states the remedy.
"""
_KEYWORDS = """\
\"\"\"The keywords of ``{config}`` for type checkers: its sections and their fields, as users name them.

Written by ``scripts/write_config_reference.py``; change the sections, not this module.
\"\"\"

from __future__ import annotations

{imports}

__all__ = ["{name}"]


class {name}(TypedDict, total=False):
    \"\"\"Keywords of ``{config}``.\"\"\"

{fields}
"""
_RUN_IMPORTS = """\
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from monolith.embedding.specs import WhenFull
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.export import ExportConfig
from monolith.training.config.gradient import ClipType, DenseOptimizerName, GradientConfig
from monolith.training.config.metrics import MetricsConfig
from monolith.training.config.pipeline import PipelineConfig
from monolith.training.config.publish import PublishConfig
from monolith.training.config.push import PushConfig
from monolith.training.config.runtime import Accelerator, RuntimeConfig
from monolith.training.config.tables import TableMemoryConfig"""
_PS_IMPORTS = """\
from pathlib import Path
from typing import TypedDict

from monolith.embedding.specs import WhenFull
from monolith.ps.config import PsLimits, PsListenConfig, PsRecoveryConfig, PsTableConfig
from monolith.rpc.security import Security"""
_SERVING_IMPORTS = """\
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from monolith.rpc.security import Security
from monolith.serving.config import (
    AccessConfig,
    GrpcConfig,
    LoadingConfig,
    ModelSourceConfig,
    MonitoringConfig,
    RequestPathConfig,
    RestConfig,
)
from monolith.serving.requests.batching import BatchSettings
from monolith.serving.versions.model_config import ModelConfig"""
_SECTIONS = (
    "run",
    "checkpoint",
    "pipeline",
    "gradient",
    "metrics",
    "runtime",
    "tables",
    "publish",
    "push",
    "task",
    "data",
    "cluster",
    "serving",
)


def page() -> str:
    """Return the page as it should be."""
    fields = config_fields(ClusterJobConfig)
    ordered = sorted(fields.values(), key=lambda field: _SECTIONS.index(field.section))
    sections = groupby(ordered, key=lambda field: field.section)
    return "\n".join([_HEAD, *(line for name, found in sections for line in _section(name, found))])


def _section(name: str, fields: Iterator[ConfigField]) -> Iterator[str]:
    yield f"## {name}\n"
    yield "| field | default | takes | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        meaning = field.help.replace("|", "\\|")
        yield f"| `{field.name}` | {_default(field)} | {field.wanted} | {meaning} |"
    yield ""


def _default(field: ConfigField) -> str:
    if field.default in (None, "", (), {}):
        return "none"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return f"`{field.default}`"


def keywords(config: type, name: str, imports: str) -> str:
    """Return the module of a configuration's keywords as it should be."""
    flat = flat_fields(config)
    sections = [field for field in dataclasses.fields(config) if field.name not in flat]
    lines = [f"    {field.name}: {field.type}" for field in sections]
    lines += [f"    {field.name}: {_annotation(field)}" for field in flat.values()]
    return _KEYWORDS.format(config=config.__name__, name=name, imports=imports, fields="\n".join(lines))


def _annotation(field: FlatField) -> str:
    """Return the annotation in the section's source; a time in whole units is an int for users."""
    annotation = str(inspect.get_annotations(field.owner)[field.path[-1]]).replace("'", '"')
    is_whole_time = field.name != field.path[-1] and field.hint in (int, int | None)
    return annotation.replace("float", "int") if is_whole_time else annotation


def main(arguments: list[str]) -> int:
    """Write the files, or check them, and return the exit status."""
    wanted = {
        PAGE: page(),
        SOURCE / "training" / "config" / "run_settings.py": keywords(RunConfig, "RunSettings", _RUN_IMPORTS),
        SOURCE / "ps" / "server_settings.py": keywords(ServerConfig, "ServerSettings", _PS_IMPORTS),
        SOURCE / "serving" / "serving_settings.py": keywords(ServingConfig, "ServingSettings", _SERVING_IMPORTS),
    }
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path} is not current; run python scripts/write_config_reference.py\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
