"""``NestedMap``: a dictionary of dictionaries whose keys are attributes, with the method names of the original.

A leaf is anything but a ``NestedMap`` or a list: plain dictionaries and tuples inside are leaves. Walks go by sorted
keys.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from monolith.core.errors import ConfigError

__all__ = ["NestedMap"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEFT_OUT = object()


class NestedMap(dict[str, Any]):
    """A dictionary with keys as attributes.

    Keys are identifiers, and no names of methods.

    >>> tree = NestedMap(tower=NestedMap(bias=1, kernel=2), steps=[3, 4])
    >>> tree.tower.kernel, tree.FlattenItems()[0]
    (2, ('steps[0]', 3))
    >>> tree.Transform(lambda leaf: leaf * 10).Flatten()
    [30, 40, 10, 20]
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__()
        self.update(*args, **values)

    def __setitem__(self, key: str, value: Any) -> None:
        self.CheckKey(key)
        super().__setitem__(key, value)

    def update(self, *args: Any, **values: Any) -> None:
        """Set several keys."""
        for key, value in dict(*args, **values).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; set it to ``default`` if the key is absent."""
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"{name!r}; available attributes: {sorted(self)}")
        return self[name]

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"{name!r}; available attributes: {sorted(self)}")
        del self[name]

    def copy(self) -> NestedMap:
        """Return a map with the same values."""
        return NestedMap(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> NestedMap:
        return self.DeepCopy()

    def DeepCopy(self) -> NestedMap:
        """Return a copy of the structure with the same leaves."""
        return self.Transform(lambda leaf: leaf)

    @staticmethod
    def FromNestedDict(value: Any) -> Any:
        """Return ``value`` with every dictionary in it, and in its lists and tuples, as a ``NestedMap``."""
        if isinstance(value, Mapping):
            return NestedMap({key: NestedMap.FromNestedDict(inner) for key, inner in value.items()})
        if isinstance(value, list):
            return [NestedMap.FromNestedDict(inner) for inner in value]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(NestedMap.FromNestedDict(inner) for inner in value)
        return value

    @staticmethod
    def CheckKey(key: object) -> None:
        """Refuse an invalid key.

        Raises:
            ConfigError: The key is not an identifier, or is the name of a method.
        """
        if not isinstance(key, str) or _NAME.fullmatch(key) is None:
            raise ConfigError(f"Invalid NestedMap key {key!r}; use an identifier")
        if key in _RESERVED:
            raise ConfigError(f"{key} is a reserved key; it is a method of NestedMap, use another name")

    # --- by dotted keys -----------------------------------------------------------------------------------------------

    def GetItem(self, key: str) -> Any:
        """Return the value of a dotted key. Elements of lists have none.

        Raises:
            KeyError: It is not there.
        """
        at: Any = self
        for part in key.split("."):
            if not isinstance(at, Mapping) or part not in at:
                raise KeyError(key)
            at = at[part]
        return at

    def Get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key, or ``default``."""
        try:
            return self.GetItem(key)
        except KeyError:
            return default

    def Set(self, key: str, value: Any) -> None:
        """Set the value of a dotted key; maps on the way are made.

        Raises:
            ConfigError: A part of the key is invalid, or has a value that is not a dictionary.
        """
        *way, last = key.split(".")
        for part in (*way, last):
            self.CheckKey(part)
        at: dict[str, Any] = self
        for part in way:
            inner = at.setdefault(part, NestedMap())
            if not isinstance(inner, dict):
                raise ConfigError(
                    f'Error while setting key {key}. Sub key "{part}" is of type {type(inner)} '
                    "but must be a dict or NestedMap."
                )
            at = inner
        at[last] = value

    # --- walks --------------------------------------------------------------------------------------------------------

    def Flatten(self) -> list[Any]:
        """Return the leaves."""
        return [leaf for _, leaf in self.FlattenItems()]

    def FlattenItems(self) -> list[tuple[str, Any]]:
        """Return (key, leaf) pairs, with keys like ``towers[1].kernel``."""
        found: list[tuple[str, Any]] = []

        def collect(key: str, leaf: Any) -> Any:
            found.append((key, leaf))
            return leaf

        _rebuild(self, "", collect)
        return found

    def Pack(self, leaves: Sequence[Any]) -> NestedMap:
        """Return the same structure with other leaves, in the order of ``Flatten``.

        Raises:
            ConfigError: There are more or fewer than leaves here.
        """
        count = len(self.FlattenItems())
        if count != len(leaves):
            raise ConfigError(f"Pack got {len(leaves)} values for {count} leaves; give one each")
        following = iter(leaves)
        return self.Transform(lambda _: next(following))

    def Transform(self, change: Callable[[Any], Any]) -> NestedMap:
        """Return the same structure with every leaf changed by a function."""
        changed: NestedMap = _rebuild(self, "", lambda _, leaf: change(leaf))
        return changed

    def IsCompatible(self, other: NestedMap) -> bool:
        """Return whether ``other`` has leaves at the same keys, so that either can ``Pack`` the other's."""
        return [key for key, _ in self.FlattenItems()] == [key for key, _ in other.FlattenItems()]

    def Filter(self, keep: Callable[[Any], bool]) -> NestedMap:
        """Return a copy with the leaves for which ``keep(leaf)`` is true; maps and lists left empty by it are gone."""
        return self.FilterKeyVal(lambda _, leaf: keep(leaf))

    def FilterKeyVal(self, keep: Callable[[str, Any], bool]) -> NestedMap:
        """Return a copy with the leaves for which ``keep(key, leaf)`` is true; see ``Filter``."""
        kept = _rebuild(self, "", lambda key, leaf: leaf if keep(key, leaf) else _LEFT_OUT)
        return NestedMap() if kept is _LEFT_OUT else kept

    def DebugString(self) -> str:
        """Return one line per leaf, with the values in a column."""
        return "\n".join(self._lines())

    def VLog(self, level: int = logging.DEBUG, prefix: str = "nmap: ") -> None:
        """Log the lines of ``DebugString``."""
        for line in self._lines():
            logger.log(level, "%s %s", prefix, line)

    def _lines(self) -> list[str]:
        items = self.FlattenItems()
        width = max((len(key) for key, _ in items), default=0) + 4
        return sorted(f"{key:<{width}}{leaf}" for key, leaf in items)


_RESERVED = frozenset(dir(NestedMap))


def _rebuild(value: Any, key: str, change: Callable[[str, Any], Any]) -> Any:
    """Return the structure with changed leaves, without ``_LEFT_OUT`` leaves and without parts that become empty."""
    if isinstance(value, NestedMap):
        named = [(name, _rebuild(value[name], f"{key}.{name}" if key else name, change)) for name in sorted(value)]
        kept = [(name, inner) for name, inner in named if inner is not _LEFT_OUT]
        return _LEFT_OUT if named and not kept else NestedMap(kept)
    if isinstance(value, list):
        elements = [_rebuild(inner, f"{key}[{place}]", change) for place, inner in enumerate(value)]
        left = [inner for inner in elements if inner is not _LEFT_OUT]
        return _LEFT_OUT if elements and not left else left
    return change(key, value)
