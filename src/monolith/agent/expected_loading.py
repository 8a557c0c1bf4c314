"""Decide which sub-models a host of a version 2 fleet loads.

A model counts only when its publishes are complete: their number equals the total that each of them states. A host
takes its own publish; a new replica of a shard takes that of its shard; every other host serves the entry only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from monolith.agent.node_paths import checked_model_name
from monolith.agent.records import PublishMeta, PublishType
from monolith.core.errors import ConfigError

__all__ = ["choose_publish", "complete_models", "expected_loading", "publish_defect"]

_MAX_DIGITS = 18


def publish_defect(publish: PublishMeta) -> str | None:
    """Return the reason why a publish cannot be loaded; None if it can."""
    if publish.shard_id is None or publish.replica_id is None or publish.total_publish_num is None:
        return "shard_id, replica_id or total_publish_num is null, expected numbers"
    try:
        checked_model_name("model_name", publish.model_name or "")
        for name, path in (publish.sub_models or {}).items():
            checked_model_name("sub_models", name)
            version = path.rpartition("/")[2]
            if not (version.isascii() and version.isdigit() and len(version) <= _MAX_DIGITS):
                return f"sub_models has {name!r} at {path!r:.80}, expected <folder>/<version>"
    except ConfigError as error:
        return str(error)
    return None


def complete_models(publishes: Iterable[PublishMeta]) -> dict[str, list[PublishMeta]]:
    """Return the publishes of each complete model."""
    by_model: dict[str, list[PublishMeta]] = {}
    for publish in publishes:
        if publish.model_name:
            by_model.setdefault(publish.model_name, []).append(publish)
    return {
        model: listed
        for model, listed in by_model.items()
        if all(each.total_publish_num == len(listed) for each in listed)
    }


def choose_publish(publishes: Iterable[PublishMeta], shard_id: int, replica_id: int) -> PublishMeta | None:
    """Return the publish that a host loads of one complete model; None = it loads nothing."""
    listed = list(publishes)
    own = next((each for each in listed if (each.shard_id, each.replica_id) == (shard_id, replica_id)), None)
    if own is not None:
        return own if own.ptype == PublishType.LOAD else None
    same_shard = sorted(
        (each for each in listed if each.shard_id == shard_id and not each.is_spec and each.ptype == PublishType.LOAD),
        key=lambda each: -1 if each.replica_id is None else each.replica_id,
    )
    if same_shard:
        return dataclasses.replace(same_shard[0], replica_id=replica_id)
    fewest = min(listed, key=lambda each: (len(each.sub_models or {}), each.get_path("")), default=None)
    if fewest is None or fewest.ptype != PublishType.LOAD:
        return None
    entries = {name: path for name, path in (fewest.sub_models or {}).items() if name.startswith("entry")}
    return dataclasses.replace(fewest, shard_id=shard_id, replica_id=replica_id, sub_models=entries)


def expected_loading(publishes: Iterable[PublishMeta], shard_id: int, replica_id: int) -> dict[str, PublishMeta]:
    """Return the publish that a host loads of each model; incomplete models are left out."""
    result = {}
    for model, listed in complete_models(publishes).items():
        chosen = choose_publish(listed, shard_id, replica_id)
        if chosen is not None:
            result[model] = chosen
    return result
