"""Names of features and the slots they stand for.

A slot without a registered name is called ``slot_12`` or ``fc_slot_12``. Any other name must be registered: numbering
unknown names in the order of their first use, as the original does, gives another slot after any change of the code,
and with it another id for every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.feature_list import FeatureList

__all__ = ["FeatureNameMapper", "SlotNames", "slot_of_name"]

_SLOT_NAME = re.compile(r"(?:fc_)?slot_(0|[1-9][0-9]*)")


def slot_of_name(name: str) -> int | None:
    """Return the slot of a name ``slot_N`` or ``fc_slot_N``, or None for other names.

    Raises:
        ConfigError: Slot N does not exist.

    >>> slot_of_name("slot_12"), slot_of_name("fc_slot_12"), slot_of_name("user_id")
    (12, 12, None)
    """
    matched = _SLOT_NAME.fullmatch(name)
    if matched is None:
        return None
    if len(matched[1]) > 5 or int(matched[1]) >= fid.V2_SLOTS:
        raise ConfigError(f"feature {name!r} names no slot; slots are 0..{fid.V2_SLOTS - 1}")
    return int(matched[1])


class SlotNames:
    """Names <-> slots: those that were registered, and the ``slot_N`` rule for the rest. Immutable.

    Args:
        slots: The slot of each name. Several names may have one slot; it is then called by the first of them.
        prefix: How to call a slot without a name.

    >>> names = SlotNames({"user_id": 5})
    >>> names.slot("user_id"), names.slot("slot_12"), names.name(5), names.name(12)
    (5, 12, 'user_id', 'fc_slot_12')
    """

    def __init__(self, slots: Mapping[str, int] | None = None, *, prefix: str = "fc_slot_") -> None:
        if prefix not in ("slot_", "fc_slot_"):
            raise ConfigError(f"prefix is {prefix!r}; use 'slot_' or 'fc_slot_'")
        self._prefix = prefix
        self._slots = dict(slots or {})
        self._names: dict[int, str] = {}
        for name, slot in self._slots.items():
            _check_slot(name, slot)
            self._names.setdefault(slot, name)

    @classmethod
    def from_feature_list(cls, listed: FeatureList, *, prefix: str = "fc_slot_") -> SlotNames:
        """Return the names of a feature list, as they are written there."""
        return cls({each.feature_name: each.slot for each in listed if each.slot is not None}, prefix=prefix)

    def slot(self, name: str) -> int:
        """Return the slot of ``name``.

        Raises:
            ConfigError: The name is not registered, and not of the form ``slot_N``.
        """
        if name in self._slots:
            return self._slots[name]
        slot = slot_of_name(name)
        if slot is None:
            raise ConfigError(
                f"feature {name!r} has no slot; register it (SlotNames({{{name!r}: slot}}), or a feature list), "
                "or call it slot_N"
            )
        return slot

    def name(self, slot: int) -> str:
        """Return the name of ``slot``.

        Raises:
            ConfigError: The slot does not exist.
        """
        _check_slot("", slot)
        return self._names.get(slot, f"{self._prefix}{slot}")


class FeatureNameMapper:
    """Which features are wanted, and the id that each has in batches.

    Wanted names and ids may become known in either order; a feature counts once both are.
    """

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def register(self, names: Iterable[str]) -> None:
        """Want these features, beside those wanted before."""
        self._wanted.update(names)

    def set_ids(self, ids: Mapping[str, int]) -> None:
        """Take note of the ids of features, wanted or not.

        Raises:
            ConfigError: A name has another id already, or an id another name. Nothing is changed then.
        """
        all_ids, all_names = dict(self._ids), dict(self._names)
        for name, number in ids.items():
            if all_ids.setdefault(name, number) != number:
                raise ConfigError(f"feature {name!r} has id {all_ids[name]} already, not {number}; ids cannot change")
            if all_names.setdefault(number, name) != name:
                raise ConfigError(
                    f"id {number} is that of feature {all_names[number]!r}, not {name!r}; ids must differ"
                )
        self._ids, self._names = all_ids, all_names

    def id(self, name: str) -> int:
        """Return the id of a wanted feature.

        Raises:
            ConfigError: It is not wanted, or its id is not known.
        """
        if name not in self._wanted:
            raise ConfigError(f"feature {name!r} is not registered; register it first")
        if name not in self._ids:
            raise ConfigError(f"feature {name!r} has no id; set_ids gives it one")
        return self._ids[name]

    def name(self, number: int) -> str:
        """Return the name of the wanted feature with this id.

        Raises:
            ConfigError: The name is unknown.
        """
        name = self._names.get(number)
        if name is None or name not in self._wanted:
            raise ConfigError(f"no registered feature has id {number}")
        return name

    def accepts(self, name: str, number: int) -> bool:
        """Return True if ``name`` is a wanted feature and ``number`` its id."""
        return name in self._wanted and self._ids.get(name) == number


def _check_slot(name: str, slot: int) -> None:
    if not 0 <= slot < fid.V2_SLOTS:
        feature = f"feature {name!r} has " if name else ""
        raise ConfigError(f"{feature}slot {slot}; slots are 0..{fid.V2_SLOTS - 1}")
