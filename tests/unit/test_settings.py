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
    "use_metrics",
    *SERVER_FIELDS,  # read by the name of their flag
}


def walk_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield str(path.relative_to(ROOT)), node


def own_fields(node: ast.ClassDef) -> list[str]:
    return [
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    ]


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_no_configuration_class_has_more_than_twelve_fields() -> None:
    classes = dict((node.name, node) for _, node in walk_classes())

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
def reads() -> set[tuple[str, str]]:
    """Return (holder, attribute) of each attribute that product code reads; the holder is the name before the dot."""
    found: set[tuple[str, str]] = set()
    for path in set(ROOT.rglob("*.py")) - set((ROOT / "compat").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if path in DEFINITIONS:
            drop_checks(tree)
        aliases = {
            target.id: value.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.NamedExpr)
            for target, value in pairs(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                holder = node.value.attr if isinstance(node.value, ast.Attribute) else ast.unparse(node.value)
                if holder != "self" or path in DEFINITIONS:
                    found.add((holder, node.attr))
                found.add((aliases.get(holder, ""), node.attr))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(("text", node.value))
    return found


def drop_checks(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [
                statement
                for statement in node.body
                if not (isinstance(statement, ast.FunctionDef) and CHECKS.match(statement.name))
            ]


def pairs(node: ast.Assign | ast.NamedExpr) -> Iterator[tuple[ast.Name, ast.Attribute]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        is_tuple = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        listed = zip(target.elts, node.value.elts, strict=False) if is_tuple else [(target, node.value)]  # type: ignore[attr-defined]
        for name, value in listed:
            while isinstance(value, ast.BoolOp):
                value = value.values[0]
            if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                yield name, value


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
    by_attribute = any((holder, field.path[-1]) in reads() for holder in holders)
    by_name = "_" in field.name and ("text", field.name) in reads()  # read_setting(config, "...")
    assert by_attribute or by_name or field.name in UNREAD, f"no code reads {config.__name__} {field.name}"
