"""The key dump: one key per line, lists by index, the way the original prints an Instance for people.

::

    "root":
      "label":
        0: 0
        1: 1
      "line_id":
        "actions":
          0: 1

Dumps are written with indentation. Those that lost it (as the one that the original ships did, with a quote) are read
by the schema: a key belongs to the innermost message that has such a field and does not have it yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from monolith._proto.messages import Message
from monolith.core.errors import RecordCorrupt
from monolith.data.records._protobuf import Descriptor, FieldDescriptor, descriptor_of, is_map, map_entry, scalar_kind
from monolith.data.records.message_tree import UNKNOWN, Misfit, Tree, fill, find_field

__all__ = ["looks_like_dump", "parse_dump", "write_dump"]

_LINE = re.compile(
    r"""(?P<indent>[ \t]*)
        (?: (?P<quoted>"(?:[^"\\]|\\.)*") | "?(?P<bare>[\w@.\-]+)"? )   # a lost quote is forgiven
        \s*:\s*
        (?P<value>\S.*?)?\s*""",
    re.VERBOSE,
)
_FIRST_LINE = re.compile(r'\s*("?root"?|"\w+")\s*:')


def looks_like_dump(text: str) -> bool:
    """Return True if ``text`` starts like a dump: with a quoted key, or with ``root``."""
    return _FIRST_LINE.match(text) is not None


def write_dump(tree: Tree) -> str:
    """Return the dump of a message's tree."""
    return "\n".join(['"root":', *_lines(tree, 1)]) + "\n"


def parse_dump(text: str, message: Message, source: str) -> None:
    """Fill ``message`` from a dump.

    Raises:
        RecordCorrupt: With the line.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if lines and re.fullmatch(r'\s*"?root"?\s*:\s*', lines[0][1]):
        del lines[0]
    builder = _Builder(descriptor_of(message), source, is_indented=any(line[0] in " \t" for _, line in lines))
    for number, line in lines:
        builder.add(number, line)
    try:
        fill(message, builder.tree)
    except Misfit as exc:
        number = builder.line_of(exc.path)
        raise RecordCorrupt(f"{source}: line {number}: {exc.path}: {exc.problem}") from exc


def _lines(tree: Tree, depth: int) -> Iterator[str]:
    keys = (
        ((json.dumps(key, ensure_ascii=False), value) for key, value in tree.items())
        if isinstance(tree, dict)
        else ((str(index), value) for index, value in enumerate(tree))
    )
    for key, value in keys:
        if isinstance(value, (dict, list)) and value:
            yield f"{'  ' * depth}{key}:"
            yield from _lines(value, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {json.dumps(value, ensure_ascii=False)}"


@dataclass(slots=True)
class _Open:
    """A group or list whose lines are being read."""

    indent: int
    path: str
    tree: Tree
    message: Descriptor | None = None  # of a message
    repeated: FieldDescriptor | None = None  # of a list
    map_of: FieldDescriptor | None = None

    def takes(self, key: str, has_value: bool) -> bool:
        if self.message is not None:
            known = key == UNKNOWN or find_field(self.message, key) is not None
            return known and key not in self.tree
        if self.repeated is not None:
            holds_messages = scalar_kind(self.repeated) == "message"
            return key == str(len(self.tree)) and holds_messages != has_value
        return key not in self.tree


class _Builder:
    """Turns the lines of one dump into a tree."""

    def __init__(self, root: Descriptor, source: str, *, is_indented: bool) -> None:
        self.tree: dict[str, Tree] = {}
        self._open = [_Open(-1, "", self.tree, message=root)]
        self._source = source
        self._is_indented = is_indented
        self._line_of: dict[str, int] = {}

    def line_of(self, path: str) -> int:
        """Return the line where that path, or the nearest above it, stands."""
        while path and path not in self._line_of:
            path = re.sub(r"(\.[^.\[]+|\[[^\]]*\]|^[^.\[]+)$", "", path)
        return self._line_of.get(path, 1)

    def add(self, number: int, line: str) -> None:
        """Read one line."""
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise self._error(number, f"not of the form 'key:' or 'key: value': {line.strip()[:60]!r}")
        key = json.loads(matched["quoted"]) if matched["quoted"] else matched["bare"]
        value = self._value(number, matched["value"])
        self._close(number, len(matched["indent"].expandtabs()), key, value not in (None, {}))
        self._attach(number, len(matched["indent"].expandtabs()), key, value)

    def _value(self, number: int, text: str | None) -> Tree:
        if not text:
            return None
        try:
            value = json.loads(text)
        except ValueError as exc:
            raise self._error(number, f"{text[:60]!r} is neither a number nor text in double quotes") from exc
        if isinstance(value, list) or (isinstance(value, dict) and value):
            raise self._error(number, f"one value is expected, not {text[:60]!r}; groups and lists go line by line")
        return value

    def _close(self, number: int, indent: int, key: str, has_value: bool) -> None:
        """Leave the groups that this line is not in."""
        if self._is_indented:
            while self._open[-1].indent >= indent:
                self._open.pop()
        else:
            fits = [place for place, group in enumerate(self._open) if group.takes(key, has_value)]
            del self._open[(fits[-1] if fits else len(self._open)) + 1 :]
        group = self._open[-1]
        if not group.takes(key, has_value):
            raise self._error(number, self._why_not(group, key, has_value))

    def _attach(self, number: int, indent: int, key: str, value: Tree) -> None:
        group = self._open[-1]
        opened = _Open(indent, "", value)
        if group.repeated is not None:
            opened.path = f"{group.path}[{key}]"
            opened.message = group.repeated.message_type
        else:
            opened.path = f"{group.path}.{key}" if group.path else key
            self._describe(group, opened, key)
        if value is None:
            opened.tree = [] if opened.repeated is not None else {}
        if isinstance(group.tree, list):
            group.tree.append(opened.tree)
        else:
            group.tree[key] = opened.tree
        self._line_of[opened.path] = number
        if isinstance(opened.tree, (dict, list)):
            self._open.append(opened)

    def _describe(self, group: _Open, opened: _Open, key: str) -> None:
        if group.map_of is not None:
            opened.path = f"{group.path}[{key!r}]"
            opened.message = map_entry(group.map_of)[1].message_type
            return
        field = find_field(group.message, key) if group.message is not None else None
        if field is None:  # the unknown fields
            return
        if is_map(field):
            opened.map_of = field
        elif field.is_repeated:
            opened.repeated = field
        else:
            opened.message = field.message_type

    def _why_not(self, group: _Open, key: str, has_value: bool) -> str:
        place = group.path or "the record"
        if group.repeated is not None:
            if key != str(len(group.tree)):
                return f"{place}: index {key} where {len(group.tree)} comes next"
            return f"{place}[{key}] is a {'group of keys' if has_value else 'single value'}"
        if key in group.tree:
            return f"{place} has {key!r} already"
        if group.message is None:
            return f"{place} does not take the key {key!r}"
        known = ", ".join(field.name for field in group.message.fields)
        return f"{place} has no field {key!r}; known: {known}"

    def _error(self, number: int, problem: str) -> RecordCorrupt:
        return RecordCorrupt(f"{self._source}: line {number}: {problem}")
