"""Model configs: the models of a server and the versions to serve, in TensorFlow Serving's format. Plain values."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from monolith.artifacts.remote_folder import stage_folder
from monolith.core.errors import ArtifactError, ConfigError, RecordCorrupt
from monolith.core.storage import is_url
from monolith.serving.api import messages

__all__ = ["ModelConfig", "VersionPolicy", "configs_of", "found_versions", "parse_model_configs", "pull_versions"]

logger = logging.getLogger(__name__)

_MAX_VERSION = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Rule that selects versions on disk.

    >>> VersionPolicy(count=2).choose([1, 5, 3])
    (3, 5)
    """

    kind: Literal["latest", "latest_once", "specific", "all"] = "latest"
    """``latest`` follows new versions; ``latest_once`` keeps the newest versions at configuration time."""
    count: int = 1
    """Number of newest versions."""
    versions: Sequence[int] = ()
    """Versions of ``specific``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", tuple(sorted(set(self.versions))))
        if self.kind not in ("latest", "latest_once", "specific", "all"):
            raise ConfigError(f"version policy is {self.kind!r}, expected latest, latest_once, specific or all")
        if self.count < 1:
            raise ConfigError(f"num_versions is {self.count!r}, expected at least 1")
        if self.kind == "specific" and not self.versions:
            raise ConfigError("version policy 'specific' has no versions, expected at least one")
        if any(not 0 <= version <= _MAX_VERSION for version in self.versions):
            raise ConfigError(f"versions are {list(self.versions)}, expected numbers from 0 to {_MAX_VERSION}")

    def choose(self, found: Iterable[int]) -> tuple[int, ...]:
        """Return the versions to serve, oldest first."""
        on_disk = sorted(set(found))
        if self.kind == "all":
            return tuple(on_disk)
        if self.kind == "specific":
            return tuple(version for version in self.versions if version in on_disk)
        return tuple(on_disk[-self.count :])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Config of one model."""

    name: str
    """Name in requests."""
    base_path: Path = Path()
    """Folder with one numbered subfolder per version; with ``url``, the local copy."""
    url: str = ""
    """URL of the versions, instead of ``base_path``; wanted versions are downloaded before they load."""
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    """Versions to serve."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """Labels of versions, such as ``stable`` and ``canary``."""
    log_rate: float | None = None
    """Share of requests to log, from 0 to 1; None takes the server's setting."""
    log_prefix: str = ""
    """Path prefix of the log files; empty takes the server's setting."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("ModelConfig.name is empty, expected a name")
        url = self.url or str(self.base_path)
        if is_url(url):
            folder = stage_folder(url)
            object.__setattr__(self, "url", folder.url)
            object.__setattr__(self, "base_path", folder.path)
        elif self.url:
            raise ConfigError(f"url of model {self.name!r} is {self.url!r}, expected scheme://...; or give base_path")
        if not str(self.base_path) or str(self.base_path) == ".":
            raise ConfigError(f"base_path of model {self.name!r} is empty, expected the folder of its versions")
        if self.log_rate is not None and not 0 <= self.log_rate <= 1:
            raise ConfigError(f"sampling_rate of model {self.name!r} is {self.log_rate!r}, expected 0 to 1")
        for label, version in self.labels.items():
            if not label or version < 0:
                raise ConfigError(
                    f"label {label!r} of model {self.name!r} is {version!r}, expected a label and a version from 0"
                )


def parse_model_configs(text: str, source: str) -> tuple[ModelConfig, ...]:
    """Parse a config file: a ModelServerConfig in protobuf text.

    Raises:
        ConfigError: The text or a value is invalid.
    """
    message = messages.ModelServerConfig()
    try:
        messages.parse_text(text, message, source)
    except RecordCorrupt as exc:
        raise ConfigError(f"{exc}; write it as model_config_list {{ config {{ name: ... base_path: ... }} }}") from exc
    return configs_of(message, source)


def configs_of(message: messages.ModelServerConfig, source: str) -> tuple[ModelConfig, ...]:
    """Return the model configs of a ModelServerConfig.

    Raises:
        ConfigError: A value is invalid.
    """
    if message.WhichOneof("config") == "custom_model_config":
        raise ConfigError(f"{source} has a custom_model_config, expected a model_config_list")
    found = tuple(_config_of(each) for each in message.model_config_list.config)
    names = [each.name for each in found]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{source} has several entries for {', '.join(map(repr, doubled))}, expected one per model")
    return found


def _config_of(message: Any) -> ModelConfig:
    requests = message.logging_config
    return ModelConfig(
        name=message.name,
        base_path=Path(message.base_path) if message.base_path and not is_url(message.base_path) else Path(),
        url=message.base_path if is_url(message.base_path) else "",
        policy=_policy_of(message.model_version_policy),
        labels=dict(message.version_labels),
        log_rate=requests.sampling_config.sampling_rate if message.HasField("logging_config") else None,
        log_prefix=requests.log_collector_config.filename_prefix,
    )


def _policy_of(message: Any) -> VersionPolicy:
    kind = message.WhichOneof("policy_choice")
    if kind is None:
        return VersionPolicy()
    if kind in ("latest", "latest_once"):
        return VersionPolicy(kind=kind, count=getattr(message, kind).num_versions or 1)
    return VersionPolicy(kind=kind, versions=tuple(message.specific.versions))


def pull_versions(config: ModelConfig) -> None:
    """Download the wanted versions of a model whose versions are at a URL. Without network, local copies stay.

    Raises:
        ConfigError: The driver of the URL is missing.
    """
    if not config.url:
        return
    try:
        stage_folder(config.url).pull_versions(config.policy.choose)
    except ArtifactError as error:
        logger.warning("versions not downloaded model=%s error=%s", config.name, error)


def found_versions(base_path: Path) -> dict[int, Path]:
    """Return the versions in a folder; empty if the folder does not exist, or cannot be read now."""
    try:
        named = [(int(child.name), child) for child in base_path.iterdir() if _is_number(child.name)]
        return {version: child for version, child in named if version <= _MAX_VERSION and child.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:  # without one of its versions, a scan would choose an older one
        logger.warning("folder of versions not read, keeping its versions path=%s error=%s", base_path, error)
        return {}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
