"""Which models a server has, and which versions of each: TensorFlow Serving's model config, checked. Plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.serving import messages

__all__ = ["ModelConfig", "VersionPolicy", "configs_of", "found_versions", "parse_model_configs"]

_MAX_VERSION = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Which of the versions on disk are served.

    >>> VersionPolicy(count=2).choose([1, 5, 3])
    (3, 5)
    """

    kind: Literal["latest", "latest_once", "specific", "all"] = "latest"
    """``latest``: the newest, as they come; ``latest_once``: those that are the newest when the model is configured."""
    count: int = 1
    """How many of the newest."""
    versions: Sequence[int] = ()
    """Those of ``specific``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", tuple(sorted(set(self.versions))))
        if self.kind not in ("latest", "latest_once", "specific", "all"):
            raise ConfigError(f"version policy is {self.kind!r}; give latest, latest_once, specific or all")
        if self.count < 1:
            raise ConfigError(f"num_versions is {self.count}; give at least 1")
        if self.kind == "specific" and not self.versions:
            raise ConfigError("version policy 'specific' names no versions; give at least one")
        if any(not 0 <= version <= _MAX_VERSION for version in self.versions):
            raise ConfigError(f"versions are {list(self.versions)}; a version is from 0 to {_MAX_VERSION}")

    def choose(self, found: Iterable[int]) -> tuple[int, ...]:
        """Return those of the versions on disk that shall be served, oldest first."""
        on_disk = sorted(set(found))
        if self.kind == "all":
            return tuple(on_disk)
        if self.kind == "specific":
            return tuple(version for version in self.versions if version in on_disk)
        return tuple(on_disk[-self.count :])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model."""

    name: str
    """What clients call it."""
    base_path: Path
    """Folder whose subfolders, named by numbers, are the versions."""
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    """Which of them are served."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """Other names of versions, such as ``stable`` and ``canary``."""
    log_rate: float | None = None
    """Share of the requests that are logged, from 0 to 1; None = the server's own setting."""
    log_prefix: str = ""
    """Begin of the names of the log's files; empty = the server's own setting."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a model has no name; give ModelConfig.name")
        if not str(self.base_path) or str(self.base_path) == ".":
            raise ConfigError(f"model {self.name!r} has no base_path; give the folder of its versions")
        if self.log_rate is not None and not 0 <= self.log_rate <= 1:
            raise ConfigError(f"model {self.name!r} has sampling_rate {self.log_rate}; give 0 to 1")
        for label, version in self.labels.items():
            if not label or version < 0:
                raise ConfigError(f"model {self.name!r} has label {label!r} for version {version}; name a version")


def parse_model_configs(text: str, source: str) -> tuple[ModelConfig, ...]:
    """Return the models of a config file: a ModelServerConfig as protobuf text.

    Raises:
        ConfigError: It is no such text, or says what cannot be.
    """
    message = messages.ModelServerConfig()
    try:
        messages.parse_text(text, message, source)
    except RecordCorrupt as exc:
        raise ConfigError(f"{exc}; write it as model_config_list {{ config {{ name: ... base_path: ... }} }}") from exc
    return configs_of(message, source)


def configs_of(message: messages.ModelServerConfig, source: str) -> tuple[ModelConfig, ...]:
    """Return the models of a ModelServerConfig.

    Raises:
        ConfigError: It says what cannot be.
    """
    if message.WhichOneof("config") == "custom_model_config":
        raise ConfigError(f"{source} has a custom_model_config, which is not supported; give a model_config_list")
    found = tuple(_config_of(each) for each in message.model_config_list.config)
    names = [each.name for each in found]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{source} names {', '.join(map(repr, doubled))} more than once; give each model one entry")
    return found


def _config_of(message: Any) -> ModelConfig:
    logging = message.logging_config
    return ModelConfig(
        name=message.name,
        base_path=Path(message.base_path) if message.base_path else Path(),
        policy=_policy_of(message.model_version_policy),
        labels=dict(message.version_labels),
        log_rate=logging.sampling_config.sampling_rate if message.HasField("logging_config") else None,
        log_prefix=logging.log_collector_config.filename_prefix,
    )


def _policy_of(message: Any) -> VersionPolicy:
    kind = message.WhichOneof("policy_choice")
    if kind is None:
        return VersionPolicy()
    if kind in ("latest", "latest_once"):
        return VersionPolicy(kind=kind, count=getattr(message, kind).num_versions or 1)
    return VersionPolicy(kind=kind, versions=tuple(message.specific.versions))


def found_versions(base_path: Path) -> dict[int, Path]:
    """Return the versions in a folder; none when there is no such folder."""
    try:
        children = list(base_path.iterdir())
    except OSError:
        return {}
    named = [(int(child.name), child) for child in children if child.name.isascii() and child.name.isdigit()]
    return {version: child for version, child in named if version <= _MAX_VERSION and child.is_dir()}
