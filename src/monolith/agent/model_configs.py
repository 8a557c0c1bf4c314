"""Make the model config of a server: which models it serves, and which versions of each.

Main types: ``make_model_config`` for one model, ``fixed_model_configs`` for the sub-models of a version 1 agent,
``model_config_text`` for the file that a server reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from monolith.agent.config import AgentConfig
from monolith.agent.messages import ModelConfig, ModelServerConfig, write_text
from monolith.agent.records import ServerType
from monolith.core.errors import ConfigError
from monolith.core.storage import list_names

__all__ = [
    "fixed_model_configs",
    "make_model_config",
    "make_server_config",
    "model_config_text",
    "newest_version",
    "versions_in",
]

_PLATFORM = "tensorflow"


def make_model_config(
    name: str,
    base_path: str,
    *,
    version_policy: str = "latest",
    version_data: int | Sequence[int] = 1,
    labels: Mapping[str, int] | None = None,
    is_foreign: bool = False,
) -> ModelConfig:
    """Return the config of one model.

    Args:
        name: Name that clients use.
        base_path: Folder of the versions.
        version_policy: latest, latest_once, all or specific; any case.
        version_data: Number of versions for the first two, the versions for specific.
        labels: Other names of versions.
        is_foreign: Whether a stock TensorFlow Serving reads it, which has no latest_once: the newest version that the
            folder has now becomes a specific one.

    Raises:
        ConfigError: The policy does not exist, or its data does not fit.
    """
    config = ModelConfig(name=name, base_path=base_path, model_platform=_PLATFORM)
    policy = config.model_version_policy
    kind = version_policy.lower()
    if kind == "latest_once" and is_foreign:
        newest = newest_version(base_path)
        kind, version_data = ("latest", 1) if newest is None else ("specific", newest)
    if kind == "latest":
        policy.latest.num_versions = _count(name, version_data)
    elif kind == "latest_once":
        policy.latest_once.num_versions = _count(name, version_data)
    elif kind == "all":
        policy.all.SetInParent()
    elif kind == "specific":
        versions = [version_data] if isinstance(version_data, int) else list(version_data)
        if not versions or any(isinstance(each, bool) or each < 0 for each in versions):
            raise ConfigError(f"version_data of {name} is {version_data!r}, expected versions of 0 or more; give them")
        policy.specific.versions.extend(versions)
    else:
        raise ConfigError(
            f"version_policy of {name}: {version_policy} is not allowed!; give latest, latest_once, all or specific"
        )
    for label, version in (labels or {}).items():
        config.version_labels[label] = version
    return config


def _count(name: str, version_data: int | Sequence[int]) -> int:
    if not isinstance(version_data, int) or version_data < 1:
        raise ConfigError(f"version_data of {name} is {version_data!r}, expected a number of versions; give 1 or more")
    return version_data


def versions_in(base_path: str) -> list[int]:
    """Return the versions in a folder, oldest first; a version is a sub-folder whose name is a number."""
    return sorted(int(name) for name in list_names(base_path) if name.isascii() and name.isdigit())


def newest_version(base_path: str) -> int | None:
    """Return the newest version in a folder, or None."""
    versions = versions_in(base_path)
    return versions[-1] if versions else None


def make_server_config(configs: Iterable[ModelConfig]) -> ModelServerConfig:
    """Return the config of a server with these models."""
    message = ModelServerConfig()
    message.model_config_list.SetInParent()
    message.model_config_list.config.extend(configs)
    return message


def model_config_text(config: ModelServerConfig) -> str:
    """Return the text of a model config file; ``model_config_list {}`` if there are no models."""
    return write_text(config) if config.model_config_list.config else "model_config_list {}\n"


def fixed_model_configs(config: AgentConfig, server_type: str, *, is_foreign: bool = False) -> ModelServerConfig:
    """Return the sub-models that a server of a version 1 agent loads."""
    base, kind = config.service.base_path, ServerType(server_type)
    if kind is ServerType.PS:
        names = [f"ps_{index}" for index in config.own_ps_indices()]
    else:
        names = ["entry" if kind is ServerType.ENTRY else "dense_0"]
    models = [(name, f"{base}/{name}") for name in names]
    if config.rough_sort.rough_sort_model_loaded_server == kind:
        models += _item_embeddings(config, kind, config.own_ps_indices() if kind is ServerType.PS else [0])
    return make_server_config(
        make_model_config(
            name,
            path,
            version_policy=config.versions.version_policy,
            version_data=config.versions.version_data,
            is_foreign=is_foreign,
        )
        for name, path in models
    )


def _item_embeddings(config: AgentConfig, kind: ServerType, indices: Sequence[int]) -> list[tuple[str, str]]:
    """Return the item-embedding models of a server, which ``rough_sort_model_loaded_server`` names."""
    if kind is ServerType.ENTRY and config.rough_sort.rough_sort_resource_constrained:
        return [("entry_item_embedding_0", f"{config.service.base_path}/entry_item_embedding_0")]
    if config.rough_sort.rough_sort_model_name is None:
        return []
    folder = f"{config.rough_sort.rough_sort_model_local_path}/{config.rough_sort.rough_sort_model_name}"
    names = [f"{kind.value}_item_embedding_{index}" for index in indices]
    return [(name, f"{folder}/{name}") for name in names]
