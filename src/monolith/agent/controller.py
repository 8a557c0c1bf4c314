"""Declare models, publish them to layouts, and show a bzid: the commands of ``monolith agent controller``.

Main type: ``Controller``. It writes the nodes that version 3 agents follow. Entry sub-graphs are declared ``latest``,
all others ``latest_once``.
"""

from __future__ import annotations

import fnmatch
import logging
import os
from typing import Any

from monolith.agent.export_names import find_sub_models, read_model_name
from monolith.agent.layouts import Layouts
from monolith.agent.node_paths import checked_model_name, parse_saved_model
from monolith.agent.records import SavedModel, SavedModelDeployConfig, sub_graph_order
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_session import ZooKeeperSession

__all__ = ["Controller"]

logger = logging.getLogger(__name__)

_ARCHITECTURE = "entry_ps"


class Controller:
    """Commands over one bzid.

    Args:
        session: A started session.
        bzid: Namespace.
    """

    def __init__(self, session: ZooKeeperSession, bzid: str) -> None:
        self._layouts = Layouts(session, bzid)

    def declare(
        self, export_base: str, *, model_name: str | None = None, overwrite: bool = False, arch: str = _ARCHITECTURE
    ) -> list[SavedModel]:
        """Declare all sub-models of an export and return them.

        Args:
            export_base: Folder with ``entry``, ``ps_0``, ...
            model_name: Name of the model; None = the name in the export.
            overwrite: Whether an existing declaration is replaced.
            arch: ``entry_ps``, the only architecture.

        Raises:
            ConfigError: An argument is invalid, or the model is declared and ``overwrite`` is False.
        """
        if arch != _ARCHITECTURE:
            raise ConfigError(
                f"arch is {arch!r}: only entry + ps architecture supported; give {_ARCHITECTURE} or leave it out"
            )
        if not export_base:
            raise ConfigError(
                f"export_base is {export_base!r}, expected the base folder of an export; give --export-base"
            )
        # Agents run in other folders: a relative path in ZooKeeper would be another folder there.
        base = export_base.rstrip("/") if "://" in export_base else os.path.abspath(export_base)
        sub_models = find_sub_models(base)
        if not sub_models:
            raise ConfigError(
                f"export_base is {export_base!r}, which has no sub-model with a version; export with entry and ps"
            )
        name = self._choose_name(base, model_name)
        if self._layouts.list_saved_models(name) and not overwrite:
            raise ConfigError(f"{name} exists and not in overwrite mode; give --overwrite or another --model-name")
        saved_models = sorted((SavedModel(name, each) for each in sub_models), key=sub_graph_order)
        for saved_model in saved_models:
            policy = "latest" if saved_model.sub_graph == "entry" else "latest_once"
            config = SavedModelDeployConfig(f"{base}/{saved_model.sub_graph}", policy)
            self._layouts.declare(saved_model, config)
        return saved_models

    def publish(self, layout: str, pattern: str) -> list[SavedModel]:
        """Put the declared sub-graphs that match ``<model>:<glob>`` into a layout and return them.

        Raises:
            ConfigError: No declared sub-graph matches.
        """
        path, model, glob = self._target(layout, pattern)
        declared = self._layouts.list_saved_models(model)
        matching = _match(declared, glob)
        if not matching:
            listed = ", ".join(each.sub_graph for each in declared) or "none"
            raise ConfigError(
                f"model_name is {pattern!r}, which matches no declared sub-graph of {model} ({listed}); "
                "declare it first"
            )
        for saved_model in matching:
            self._layouts.add_to_layout(path, saved_model)
        return matching

    def unpublish(self, layout: str, pattern: str) -> list[SavedModel]:
        """Take the sub-graphs that match ``<model>:<glob>`` out of a layout and return them.

        Raises:
            ConfigError: Neither a declared sub-graph nor one of the layout matches.
        """
        path, model, glob = self._target(layout, pattern)
        members = [parse_saved_model(name) for name in self._layouts.list_layout(path)]
        known = {each for each in members if each is not None and each.model_name == model}
        matching = _match({*known, *self._layouts.list_saved_models(model)}, glob)
        if not matching:
            raise ConfigError(
                f"model_name is {pattern!r}, which matches no sub-graph of layout {path}; run bzid_info to see them"
            )
        for saved_model in matching:
            self._layouts.remove_from_layout(path, saved_model)
        return matching

    def bzid_info(self) -> dict[str, Any]:
        """Return declarations, bindings, containers and layouts of the bzid."""
        return self._layouts.bzid_info()

    def _choose_name(self, export_base: str, given: str | None) -> str:
        found = read_model_name(export_base)
        wanted = (given or "").partition(":")[0]
        if wanted and found is not None and wanted != found:
            logger.error("model name differs from the export given=%s export=%s", wanted, found)
        name = wanted or found
        if name is None:
            raise ConfigError(f"Model name is None: the export {export_base!r} does not name it; give --model-name")
        return checked_model_name("model_name", name)

    def _target(self, layout: str, pattern: str) -> tuple[str, str, str]:
        if not layout:
            raise ConfigError(f"layout is {layout!r}, expected the name of a layout; give --layout")
        if not layout.startswith("/"):
            for part in layout.split("/"):
                checked_model_name("layout", part)
        model, colon, glob = pattern.partition(":")
        if not model or not colon or not glob:
            raise ConfigError(f"model_name is {pattern!r}, expected <model>:<glob of sub-graphs>; give --model-name")
        return self._layouts.paths.layout(layout), checked_model_name("model_name", model), glob


def _match(saved_models: Any, glob: str) -> list[SavedModel]:
    matching = [each for each in saved_models if fnmatch.fnmatchcase(each.sub_graph, glob)]
    return sorted(matching, key=sub_graph_order)
