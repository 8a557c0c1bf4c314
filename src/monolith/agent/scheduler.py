"""Place the sub-models of a model on the shards of a version 2 fleet by their free memory.

Main type: ``plan_publishes``, a pure function from sizes and resources to publishes. ``Placement`` holds the result.

Rule: a share of the free memory stays free. The scheduler takes the wanted number of shards, or the smallest number
that fits. PS sub-models go from the largest to the smallest, each to the shard that it fills least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monolith.agent.model_sizes import SubModelSize
from monolith.agent.records import ModelMeta, PublishMeta, ResourceSpec, parse_sub_model_name
from monolith.core.errors import ConfigError

__all__ = ["KEPT_FREE", "DoesNotFit", "placement_is_current", "plan_publishes"]

KEPT_FREE = 0.1
"""Share of a shard's free memory that stays free."""


class DoesNotFit(ConfigError):
    """No placement of a model fits into the free memory."""


@dataclass(frozen=True, slots=True)
class _Shard:
    shard_id: int
    replicas: tuple[int, ...]
    budget: int


def plan_publishes(
    model: ModelMeta,
    sizes: Mapping[str, SubModelSize],
    resources: Iterable[ResourceSpec],
    *,
    promised: Mapping[int, int] | None = None,
    dense_alone: bool = False,
    kept_free: float = KEPT_FREE,
) -> list[PublishMeta]:
    """Return the publishes of a model.

    Args:
        model: The wanted model.
        sizes: Bytes and version path of each sub-model.
        resources: Free memory of each host.
        promised: Bytes per shard that publishes of other models promised and that are not AVAILABLE yet.
        dense_alone: Whether dense sub-models run on dedicated servers.
        kept_free: Share of the free memory that stays free.

    Raises:
        ConfigError: The model cannot be placed at all, for example with more shards than PS sub-models.
        DoesNotFit: No number of shards fits; the error names needed bytes and budgets.
    """
    ps = {name: size for name, size in sizes.items() if _kind(name) == "ps"}
    if not ps:
        raise ConfigError(f"model {model.model_name!r} has no PS sub-model; export it distributed")
    common = {name: size for name, size in sizes.items() if name not in ps}
    common_bytes = sum(size.bytes for name, size in common.items() if not (dense_alone and _kind(name) == "dense"))
    shards = _shards(resources, set(model.spec_replicas or ()), promised or {}, kept_free)
    wanted = -1 if model.num_shard is None else model.num_shard
    if wanted > len(ps):
        raise ConfigError(
            f"num_shard of model {model.model_name!r} is {wanted}, expected at most its {len(ps)} PS sub-models; "
            "lower it"
        )
    if wanted > len(shards):
        raise DoesNotFit(
            f"num_shard of model {model.model_name!r} is {wanted}, expected at most the {len(shards)} shards that have "
            "hosts; lower it or add hosts"
        )
    counts = [wanted] if wanted > 0 else range(1, min(len(shards), len(ps)) + 1)
    for count in counts:
        placement = _place(ps, common_bytes, shards[:count])
        if placement is not None:
            return _publishes(model, sizes, common, shards[:count], placement, len(ps))
    needed = common_bytes + sum(size.bytes for size in ps.values())
    raise DoesNotFit(
        f"model {model.model_name!r} needs {needed} bytes, and the budgets of the shards are "
        f"{ {each.shard_id: each.budget for each in shards} }; free memory or add hosts"
    )


def placement_is_current(publishes: Iterable[PublishMeta], shard_ids: Iterable[int]) -> bool:
    """Return True if the publishes of a model are complete and name only shards that have hosts."""
    listed, known = list(publishes), set(shard_ids)
    return bool(listed) and all(each.total_publish_num == len(listed) and each.shard_id in known for each in listed)


def _index(name: str) -> int:
    return parse_sub_model_name(name)[1]


def _kind(name: str) -> str:
    try:
        return parse_sub_model_name(name)[0]
    except ConfigError:
        return ""


def _shards(
    resources: Iterable[ResourceSpec], allowed: set[int], promised: Mapping[int, int], kept_free: float
) -> list[_Shard]:
    """Return the shards that have hosts, the largest budget first; ties: the lower shard id."""
    memory: dict[int, dict[int, int]] = {}
    for each in resources:
        if each.shard_id is None or each.shard_id < 0 or each.replica_id is None:
            continue
        if not allowed or each.replica_id in allowed:
            memory.setdefault(each.shard_id, {})[each.replica_id] = each.memory or 0
    shards = []
    for shard_id, hosts in memory.items():
        free = min(hosts.values()) - promised.get(shard_id, 0)
        budget = max(0, math.floor(free * (1 - kept_free) + 1e-6))
        shards.append(_Shard(shard_id, tuple(sorted(hosts)), budget))
    return sorted(shards, key=lambda each: (-each.budget, each.shard_id))


def _place(ps: Mapping[str, SubModelSize], common: int, shards: list[_Shard]) -> dict[int, list[str]] | None:
    """Return the PS sub-models of each shard, or None if they do not fit."""
    used = {each.shard_id: common for each in shards}
    placed: dict[int, list[str]] = {each.shard_id: [] for each in shards}
    budgets = {each.shard_id: each.budget for each in shards}
    order = sorted(ps, key=lambda name: (-ps[name].bytes, _index(name)))
    for name in order:
        size = ps[name].bytes
        shard_id = min(
            used, key=lambda each: ((used[each] + size) / budgets[each] if budgets[each] else math.inf, each)
        )
        used[shard_id] += size
        placed[shard_id].append(name)
    fits = all(used[each] <= budgets[each] and placed[each] for each in used)
    return placed if fits else None


def _publishes(
    model: ModelMeta,
    sizes: Mapping[str, SubModelSize],
    common: Mapping[str, SubModelSize],
    shards: list[_Shard],
    placement: Mapping[int, list[str]],
    num_ps: int,
) -> list[PublishMeta]:
    total = sum(len(each.replicas) for each in shards)
    return [
        PublishMeta(
            shard_id=shard.shard_id,
            replica_id=replica,
            model_name=model.model_name,
            num_ps=num_ps,
            total_publish_num=total,
            sub_models={
                name: sizes[name].path
                for name in (
                    *sorted(placement[shard.shard_id], key=lambda each: parse_sub_model_name(each)[1]),
                    *common,
                )
            },
            is_spec=bool(model.spec_replicas),
        )
        for shard in sorted(shards, key=lambda each: each.shard_id)
        for replica in shard.replicas
    ]
