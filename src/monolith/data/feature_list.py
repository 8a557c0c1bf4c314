"""``feature_list.conf``: which features there are, their slots and versions, and which raw columns they come from.

One item per line, ``key=value`` pairs separated by ``;``; ``#`` begins a comment line::

    column_name: user_id, goods_price
    feed_name=fc_goods_price; shared=true; feature_id=368235
    feature_name=f_user_id; depend=user_id; method=DirectString; slot=5
    feature_name=fc_goods_ids; depend=goods; method=VectorTopString; args=10; slot=1204; feature_version=2

Methods are names only; this module does not extract values, and does not watch the file for changes.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from monolith.core import fid
from monolith.core.errors import ConfigError

__all__ = ["FeatureList", "ListedCache", "ListedFeature", "ListedFeed"]

_TRUE = frozenset({"true", "yes", "t", "y", "1"})
_FALSE = frozenset({"false", "no", "f", "n", "0", ""})
_KEY = re.compile(r"(?:^|[\s;])([A-Za-z_]\w*)\s*=\s*")
_FIRST_KEY = re.compile(r"([A-Za-z_]\w*)\s*:\s*")
_PREFIXES = ("f_", "fc_")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFeature:
    """One feature line."""

    feature_name: str
    depend: tuple[str, ...] = ()
    """The raw columns, or features, that it is made of."""
    method: str = ""
    """The name of the extraction method."""
    slot: int | None = None
    args: tuple[str, ...] = ()
    feature_version: Literal[1, 2] = 1
    """The version of its feature ids."""
    shared: bool = False
    cache_keys: tuple[str, ...] = ()
    need_raw: bool = False
    feature_id: int | None = None
    input_optional: tuple[bool, ...] = ()
    feature_group: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Unknown keys, as written."""

    @property
    def name(self) -> str:
        """The short name: lower case, without ``f_`` or ``fc_``, in every part of a cross.

        >>> ListedFeature(feature_name="fc_user_id-f_Page").name
        'user_id-page'
        """
        return "-".join(re.sub("^(f_|fc_)", "", part) for part in self.feature_name.lower().split("-"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFeed:
    """One feed line."""

    feed_name: str
    shared: bool = False
    feature_id: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Unknown keys, as written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedCache:
    """One cache line."""

    cache_name: str = ""
    cache_column: str = ""
    capacity: int | None = None
    timeout: int | None = None
    cache_type: str = ""
    cache_key_class: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Unknown keys, as written."""


Item = TypeVar("Item", ListedFeature, ListedFeed, ListedCache)


@dataclass(frozen=True, slots=True)
class FeatureList:
    r"""The content of one ``feature_list.conf``. Iterates over its features, in the order of the file.

    >>> listed = FeatureList.parse("feature_name=fc_user_id; slot=5; feature_version=2\nfeed_name=fc_user_id")
    >>> listed.slot("user_id"), listed.name(5), listed.version("user_id"), len(listed)
    (5, 'fc_user_id', 2, 1)
    """

    features: tuple[ListedFeature, ...]
    feeds: tuple[ListedFeed, ...] = ()
    caches: tuple[ListedCache, ...] = ()
    columns: tuple[str, ...] = ()
    """The raw columns, each once."""
    _by_name: Mapping[str, ListedFeature] = field(init=False, repr=False, compare=False)
    _by_slot: Mapping[int, ListedFeature] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_slot: dict[int, ListedFeature] = {}
        for feature in self.features:
            if feature.slot is not None:
                by_slot.setdefault(feature.slot, feature)
        object.__setattr__(self, "_by_name", {feature.feature_name: feature for feature in self.features})
        object.__setattr__(self, "_by_slot", by_slot)

    @classmethod
    def parse(cls, source: str | os.PathLike[str]) -> FeatureList:
        """Read a feature list from a file, or from its text.

        Args:
            source: A path; or, as a ``str`` with a line break or ``=`` in it and no such file, the text itself.

        Raises:
            ConfigError: The file is absent, or a line is invalid; the text names it.
        """
        text, origin = _read(source)
        return _Parser(origin).parse(text)

    def to_text(self) -> str:
        """Return the list as the text of a file; `parse` of it gives an equal list."""
        lines = [f"column_name: {', '.join(self.columns)}"] if self.columns else []
        lines += [_line(item) for items in (self.caches, self.feeds, self.features) for item in items]
        return "".join(f"{line}\n" for line in lines)

    def find(self, key: str | int) -> ListedFeature | None:
        """Return a feature by slot or by name, or None.

        Several features may have one slot: the first counts. A name is looked up as it is, then with ``f_``, then with
        ``fc_`` before it; of a cross (``a-b``), before every part.
        """
        if isinstance(key, int):
            return self._by_slot.get(key)
        candidates = [key, *(prefix + key for prefix in _PREFIXES)]
        if "-" in key:
            candidates += ["-".join(prefix + part for part in key.split("-")) for prefix in _PREFIXES]
        return next((self._by_name[name] for name in candidates if name in self._by_name), None)

    def __getitem__(self, key: str | int) -> ListedFeature:
        found = self.find(key)
        if found is not None:
            return found
        if isinstance(key, int):
            raise ConfigError(f"no feature has slot {key}; the feature list has {len(self._by_slot)} slots")
        close = difflib.get_close_matches(key, self._by_name, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; the feature list has {len(self)} features"
        raise ConfigError(f"feature {key!r} is unknown{hint}")

    def slot(self, name: str) -> int:
        """Return the slot of a feature.

        Raises:
            ConfigError: The feature is unknown, or it has no slot.
        """
        feature = self[name]
        if feature.slot is None:
            raise ConfigError(f"feature {feature.feature_name!r} has no slot; add slot= to its line")
        return feature.slot

    def name(self, slot: int) -> str:
        """Return the name, as written in the list, of the feature in ``slot``.

        Raises:
            ConfigError: No feature has it.
        """
        return self[slot].feature_name

    def version(self, name: str | int) -> Literal[1, 2]:
        """Return the version of a feature's ids.

        Raises:
            ConfigError: The feature is unknown.
        """
        return self[name].feature_version

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, int)) and self.find(key) is not None

    def __iter__(self) -> Iterator[ListedFeature]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(source: str | os.PathLike[str]) -> tuple[str, str]:
    if isinstance(source, str) and ("\n" in source or ("=" in source and not Path(source).exists())):
        return source, "feature list"
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the feature list {str(path)!r} cannot be read ({exc})") from exc


class _Parser:
    """Reads the lines of one file; knows the line it is at, for errors."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._number = 0
        self._seen: dict[str, int] = {}

    def parse(self, text: str) -> FeatureList:
        features: list[ListedFeature] = []
        feeds: list[ListedFeed] = []
        caches: list[ListedCache] = []
        columns: dict[str, None] = {}
        for self._number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            if matched := re.match(r"column_name\s*[:=]\s*", line):
                columns.update(dict.fromkeys(_items(line[matched.end() :].rstrip(";"))))
                continue
            pairs = self._pairs(line)
            if "feature_name" in pairs:
                features.append(self._item(ListedFeature, pairs, "feature_name"))
            elif "feed_name" in pairs:
                feeds.append(self._item(ListedFeed, pairs, "feed_name"))
            elif "cache_name" in pairs:
                caches.append(self._item(ListedCache, pairs, "cache_name"))
            elif "cache_column" in pairs:
                caches.append(self._item(ListedCache, pairs, "cache_column"))
            else:
                raise self._error(
                    f"{line[:60]!r} is not an item, expected one of feature_name=, feed_name=, cache_name=, "
                    "cache_column: or column_name:"
                )
        return FeatureList(tuple(features), tuple(feeds), tuple(caches), tuple(columns))

    def _pairs(self, line: str) -> dict[str, str]:
        if matched := _FIRST_KEY.match(line):
            line = f"{matched[1]}={line[matched.end() :]}"
        keys = list(_KEY.finditer(line))
        if not keys or keys[0].start() != 0:
            raise self._error(f"{line[:60]!r} does not begin with key=value")
        pairs: dict[str, str] = {}
        ends = [key.start() for key in keys[1:]] + [len(line)]
        for key, end in zip(keys, ends, strict=True):
            if key[1] in pairs:
                raise self._error(f"the key {key[1]!r} is given twice")
            pairs[key[1]] = line[key.end() : end].strip().rstrip(";").rstrip()
        return pairs

    def _item(self, kind: type[Item], pairs: Mapping[str, str], name_key: str) -> Item:
        name = _bare(pairs[name_key])
        if not name:
            raise self._error(f"{name_key} is empty")
        label = f"{name_key}={name}"
        if label in self._seen:
            raise self._error(f"{label} is on line {self._seen[label]} already; names must differ")
        self._seen[label] = self._number
        hints = get_type_hints(kind)
        values: dict[str, Any] = {}
        extra: dict[str, str] = {}
        for key, text in pairs.items():
            if key in hints and key != "extra":
                values[key] = self._value(key, text, hints[key])
            elif close := difflib.get_close_matches(key, hints, n=1, cutoff=0.8):
                raise self._error(f"the key {key!r} is not known; did you mean {close[0]!r}?")
            else:
                extra[key] = text
        return kind(**values, extra=extra)

    def _value(self, key: str, text: str, hint: Any) -> Any:
        if hint is str:
            return _bare(text)
        if hint is bool:
            return self._bool(key, text)
        if hint == tuple[bool, ...]:
            return tuple(self._bool(key, item) for item in _items(text))
        if hint == tuple[str, ...]:
            return _items(text)
        number = self._int(key, text)
        if key == "feature_version" and number not in get_args(hint):
            raise self._error(f"feature_version is {number}; feature ids have version 1 or 2")
        if key == "slot" and not 0 <= number < fid.V2_SLOTS:
            raise self._error(f"slot is {number}; slots are 0..{fid.V2_SLOTS - 1}")
        return number

    def _int(self, key: str, text: str) -> int:
        try:
            return int(_bare(text))
        except ValueError as exc:
            raise self._error(f"{key} is {text!r}; a whole number is needed") from exc

    def _bool(self, key: str, text: str) -> bool:
        word = _bare(text).lower()
        if word not in _TRUE and word not in _FALSE:
            raise self._error(f"{key} is {text!r}; use true or false")
        return word in _TRUE

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self._origin}: line {self._number}: {problem}")


def _bare(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _items(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (_bare(item) for item in _bare(text).split(","))))


# --- writing ----------------------------------------------------------------------------------------------------------


def _line(item: ListedFeature | ListedFeed | ListedCache) -> str:
    pairs: dict[str, str] = {}
    for described in fields(item):
        value = getattr(item, described.name)
        if described.name != "extra" and (described.default is MISSING or value != described.default):
            pairs[described.name] = _format_value(value)
    return "; ".join(f"{key}={value}" for key, value in {**pairs, **item.extra}.items())


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_format_value(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
