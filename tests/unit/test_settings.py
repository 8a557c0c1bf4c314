"""Configuration classes are small, and product code reads each of their settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import monolith
from monolith.agent.config import AgentConfig
from monolith.agent.settings import SERVER_FIELDS
from monolith.core.config_sections import FlatField, flat_fields
from monolith.ps import ServerConfig
from monolith.serving import ServingConfig
from monolith.training.cluster import DistributedConfig
from monolith.training.cluster.job_config import ClusterJobConfig
from setting_readers import Readers, is_field

ROOT = Path(monolith.__file__).parent
MAX_FIELDS = 12
SETTINGS = re.compile(r"\w+(Config|Options|Settings|Flags|Limits|Environment)$")
LARGE: dict[str, int] = {}
"""Classes above the limit, with their size."""

DEFINITIONS = {
    *(ROOT / "training" / "config").glob("*.py"),
    ROOT / "training" / "cluster" / "config.py",
    ROOT / "training" / "cluster" / "job_config.py",
    ROOT / "ps" / "config.py",
    ROOT / "serving" / "config.py",
    ROOT / "agent" / "config.py",
    ROOT / "agent" / "settings.py",
}
"""Modules that define settings: their constructors and checks are not readers, their other functions are."""
CHECKS = re.compile(r"__|_?check|_?refuse|_?require")

PORTS = {f"tfs_{role}_{kind}port" for role in ("entry", "ps", "dense") for kind in ("", "http_", "archon_")}
"""Ports of an agent, which code reads by the names of a table."""
UNREAD = {
    # Refused unless 0, with a remedy.
    "num_extra_ps",
    "num_redundant_ps",
    # Rules of the original for a process; a job has no such settings.
    "barrier_timeout_ms",
    "table_name",
    # An agent accepts the files of the original, also with settings for which it has no use.
    "preload_jemalloc",
    "proxy_port",
    *SERVER_FIELDS,  # read by the name of their flag
    *PORTS,
}
LIMITS = {"nan_rate", "score_shift", "mean_shift", "calibration_error"}
"""Limits of a canary, which code compares in a loop over their names."""
BOUNDS = {(DistributedConfig, "num_workers")}
"""Settings whose only use is a check of another setting: the index of a process."""


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def walk_classes() -> Iterator[ast.ClassDef]:
    for tree in sources().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def own_fields(node: ast.ClassDef) -> list[str]:
    return [statement.target.id for statement in node.body if is_field(statement)]  # type: ignore[attr-defined]


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_no_configuration_class_has_more_than_twelve_fields() -> None:
    classes = {node.name: node for node in walk_classes()}

    def count(name: str) -> int:
        node = classes[name]
        bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        return len(own_fields(node)) + sum(count(base) for base in bases if base in classes)

    sizes = {
        node.name: count(node.name) for node in classes.values() if SETTINGS.match(node.name) and is_dataclass(node)
    }
    assert len(sizes) > 40, "the walk finds the classes"
    assert {name: size for name, size in sizes.items() if size > MAX_FIELDS} == LARGE


@cache
def readers() -> Readers:
    """Return the readers of attributes in product code, without checks of settings."""
    modules = {}
    for path, tree in sources().items():
        if path.is_relative_to(ROOT / "compat"):
            continue
        if path in DEFINITIONS:
            tree = ast.parse(path.read_text())
            drop_checks(tree)
        modules[str(path.relative_to(ROOT))] = tree
    return Readers(modules, {field.name for _, field in settings()})


def drop_checks(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [
                statement
                for statement in node.body
                if not (isinstance(statement, ast.FunctionDef) and CHECKS.match(statement.name))
            ]


def settings() -> Iterator[tuple[type, FlatField]]:
    for config in (ClusterJobConfig, DistributedConfig, ServerConfig, ServingConfig, AgentConfig):
        for field in flat_fields(config).values():
            yield config, field


@pytest.mark.parametrize(
    ("config", "field"),
    list(settings()),
    ids=lambda value: value.name if isinstance(value, FlatField) else value.__name__,
)
def test_product_code_reads_every_setting(config: type, field: FlatField) -> None:
    holders = {*field.path[:-1], "config", "_config", "settings", "_settings", "self"}
    is_exempt = field.name in UNREAD or (config, field.name) in BOUNDS
    assert is_exempt or readers().uses(field.path[-1], holders), f"no code uses {config.__name__} {field.name}"


def test_code_uses_every_field_of_the_settings_of_all_parts() -> None:
    exempt = {*UNREAD, *LIMITS, *(f"canary_max_{name}" for name in LIMITS), "barrier_timeout_s"}
    fields = [
        (node.name, field)
        for path, tree in sources().items()
        if not path.is_relative_to(ROOT / "compat")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and SETTINGS.match(node.name) and is_dataclass(node)
        for field in own_fields(node)
    ]
    assert len(fields) > 500, "the walk finds the classes"
    assert [(name, field) for name, field in fields if field not in exempt and not readers().uses(field)] == []


def test_settings_that_are_read_by_name_are_in_the_table_of_ports() -> None:
    tables = ast.parse((ROOT / "agent" / "ports.py").read_text())
    names = {node.value for node in ast.walk(tables) if isinstance(node, ast.Constant)}
    assert names >= PORTS


READING = """
def run(config):
    report = Report(limit=config.limit)
    start(config.speed, pace=config.pace)
    queue = Queue(size=config.size)
    options = {"depth": config.depth}
    width, height = config.width, config.height
    print(height)
    return Owner(config.share)

def start(rate, *, pace):
    if rate > 1:
        launch(pace)

def launch(pace):
    "Ignores its argument."

@dataclass
class Report:
    limit: int

class Queue:
    def __init__(self, size):
        self._size = size

    @property
    def size(self):
        return self._size

class Owner:
    def __init__(self, part):
        self._part = part

    def divide(self, whole):
        return whole / self._part
"""


@pytest.mark.parametrize(
    ("setting", "is_used"),
    [
        ("limit", False),  # copied to a field that no code reads
        ("speed", True),  # compared by the function that gets it
        ("pace", False),  # passed on twice, then ignored
        ("size", False),  # stored, and returned by a property that no code reads
        ("depth", True),  # an option whose receiver is not in the sources
        ("width", False),  # assigned to a name that no code reads
        ("height", True),
        ("share", True),  # stored, then divided by
        ("absent", False),
    ],
)
def test_a_copy_is_a_reader_only_if_its_receiver_uses_it(setting: str, is_used: bool) -> None:
    assert Readers({"job": ast.parse(READING)}).uses(setting, {"config"}) is is_used
