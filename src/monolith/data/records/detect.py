"""``detect``: finds the compression, framing and message type of an unknown file.

It tries every combination on the start of the file and keeps the best fit. The result contains the evidence, and the
other framings that read the same records.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Literal, TypeAlias

from monolith import _native
from monolith.core import storage
from monolith.core.errors import RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import Codec
from monolith.data.records.framing import Framing

if TYPE_CHECKING:
    from monolith.data.sources.base import RecordKind

__all__ = ["Confidence", "Detection", "KINDS", "TextStyle", "best_kind", "detect", "detect_bytes"]

Confidence: TypeAlias = Literal["certain", "likely", "possible", "none"]
"""certain: checksums match; likely: sizes chain and messages fit; possible: one of the two; none: no framing fits."""

TextStyle: TypeAlias = Literal["json", "pbtxt", "dump", "other"]
"""A message as JSON, as a text proto, as an indented dump of keys, or other text."""

KINDS: tuple[RecordKind, ...] = ("instance", "example", "example_batch", "example_batch_row_major", "tf_example")
"""The kinds of messages, in the order of the native fits."""

_HEAD_BYTES = 4 << 20
_LONG_HEAD_BYTES = 64 << 20  # looked at when no record is complete in the short one
_MOST_RECORDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """The format of a file, and the evidence."""

    compression: Codec
    """The compression of the whole file."""

    framing: Framing | None
    """The header before each record; None if no framing fits, and for text."""

    record: RecordKind | None
    """The message type of the records; None if unknown."""

    confidence: Confidence
    """The confidence of this result."""

    evidence: tuple[str, ...]
    """The observations, one sentence each."""

    alternatives: tuple[Framing, ...] = ()
    """Other framings that read exactly the same records."""

    text: TextStyle | None = None
    """The style of a text file."""

    def reads_like(self, framing: Framing) -> bool:
        """Return True if ``framing`` reads the same records as the detected one."""
        return framing == self.framing or framing in self.alternatives

    def remedy(self, framing: Framing, compression: Codec) -> str:
        """Return the arguments that fit the file instead of these two, as text; empty if unknown."""
        if self.text is not None:
            return f"the file is {'text' if self.text == 'other' else self.text} and contains no framed records"
        if self.compression != compression:
            return f"the file is compressed with {self.compression}; give compression={self.compression!r} or 'auto'"
        if self.framing is None or self.confidence not in ("certain", "likely") or self.reads_like(framing):
            return ""
        return f"the file reads well with {self.framing!r}"


def detect(path: str | os.PathLike[str]) -> Detection:
    """Return the format of a file, local or URL, by its first bytes.

    Raises:
        OSError: The file is absent, or cannot be read.
    """
    name = os.fspath(path)
    size = storage.file_bytes(name)
    with storage.open_file(name) as file:
        raw = storage.read_up_to(file, codecs.HEAD_BYTES)
        codec = codecs.codec_of_head(raw, is_whole=len(raw) == size) or "none"
        file.seek(0)
        head, is_whole, damage = _head(codecs.decompress(file, codec, name), _HEAD_BYTES)
        found = _detect(head, is_whole, codec, damage)
        if found.framing is None and found.text is None and not is_whole and not damage:
            file.seek(0)
            head, is_whole, damage = _head(codecs.decompress(file, codec, name), _LONG_HEAD_BYTES)
            found = _detect(head, is_whole, codec, damage)
    named = codecs.codec_of_name(name)
    if named not in ("none", codec):
        note = f"the name promises {named}, but the file does not begin like it"
        return replace(found, evidence=(*found.evidence, note))
    return found


def detect_bytes(head: bytes, *, is_whole: bool) -> Detection:
    """Return the format of a stream that starts with ``head``; if ``is_whole``, the stream also ends there."""
    codec = codecs.codec_of_head(head, is_whole=is_whole) or "none"
    plain, ends, damage = _head(codecs.decompress(BytesIO(head), codec, "stream"), _HEAD_BYTES)
    if codec != "none" and not is_whole:
        ends, damage = False, ""  # the codec stops because the head does
    return _detect(plain, is_whole and ends, codec, damage)


def _head(pieces: Iterator[bytes], size: int) -> tuple[bytes, bool, str]:
    """Return the first bytes of a stream, whether they are all bytes, and the damage that ended them."""
    parts: list[bytes] = []
    try:
        for piece in pieces:
            parts.append(piece[:size])
            size -= len(parts[-1])
            if size == 0 or len(parts[-1]) < len(piece):
                return b"".join(parts), False, ""
    except RecordCorrupt as error:
        return b"".join(parts), False, str(error)
    return b"".join(parts), True, ""


def _detect(head: bytes, is_whole: bool, codec: Codec, damage: str) -> Detection:
    evidence = [f"the first bytes are those of {codec}"] if codec != "none" else ["no compression"]
    if damage:
        evidence.append(damage)
    if not head:
        evidence.append("the file is empty")
        return Detection(compression=codec, framing=None, record=None, confidence="none", evidence=tuple(evidence))
    found = _as_text(head, is_whole) or _as_records(head, is_whole)
    return replace(found, compression=codec, evidence=(*evidence, *found.evidence))


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    framing: Framing
    probe: _native.FramingProbe
    record: RecordKind | None
    share: float
    """Fraction of the seen fields that the message type has."""

    @property
    def density(self) -> float:
        """Bytes per non-empty record."""
        return self.probe.bytes / (self.probe.records - self.probe.empty)


# Header layouts, the most common first: the first wins if several read the same records.
_USUAL = (1, 3, 8, 5, 7, 0, 2, 4, 6)
_TFRECORD = Framing.tfrecord()


def best_kind(fits: list[tuple[int, int, int]]) -> tuple[RecordKind | None, float]:
    """Return the message type that fits best, and the fraction of the fields that it has."""
    best: tuple[RecordKind | None, float] = (None, 0.0)
    for kind, (known, unknown, misfits) in zip(KINDS, fits, strict=True):
        share = known / (known + unknown) if known and not misfits else 0.0
        if share > best[1]:
            best = (kind, share)
    return best


def _as_records(head: bytes, is_whole: bool) -> Detection:
    if (certain := _as_tfrecord(head, is_whole)) is not None:
        return certain
    tried = [made for bits in _USUAL if (made := _try(Framing.from_bits(bits), head, is_whole)) is not None]
    candidates = [each for each in tried if not each.probe.damage]
    fitting = sorted((each for each in candidates if each.record is not None), key=_rank)
    if fitting:
        return _choose(fitting)
    bare = _try(Framing.bare(), head, is_whole)
    if bare is not None and bare.record is not None and bare.share == 1.0:
        sentence = f"the whole file of {len(head)} bytes is one message that fits {bare.record}"
        return _found(bare, "likely", [sentence])
    damaged = sorted((each for each in tried if each.share == 1.0 and not each.probe.empty), key=_rank)
    if damaged:
        best = damaged[0]
        sentence = f"{_count(best.probe)} fit {best.record}; then {best.probe.damage}"
        return _found(best, "possible", [sentence])
    if candidates:
        chained = min(candidates, key=lambda each: (each.probe.empty, each.density))
        sentence = f"sizes chain over {_count(chained.probe)}, but no known message fits"
        return _found(chained, "possible", [sentence])
    return Detection(
        compression="none",
        framing=None,
        record=None,
        confidence="none",
        evidence=("no framing makes sizes that chain", _first_damage(head, is_whole)),
    )


def _as_tfrecord(head: bytes, is_whole: bool) -> Detection | None:
    made = _try(_TFRECORD, head, is_whole)
    if made is None:
        return None
    # A matching checksum is never a coincidence, even if later bytes are corrupt.
    sentences = [f"TFRecord checksums agree over {_count(made.probe)}"]
    if made.record is not None:
        sentences.append(f"their fields fit {made.record}")
    if made.probe.damage:
        sentences.append(f"then {made.probe.damage}")
    return _found(made, "certain", sentences)


def _try(framing: Framing, head: bytes, is_whole: bool) -> _Candidate | None:
    """Return the framing as a candidate, if it finds at least one payload, perhaps before some damage."""
    probe = _native.probe_framing(framing.bits, head, _MOST_RECORDS, is_whole)
    if probe.records == probe.empty:
        return None
    record, share = best_kind(probe.fits)
    return _Candidate(framing=framing, probe=probe, record=record, share=share)


def _rank(each: _Candidate) -> tuple[object, ...]:
    """Return the sort key of a candidate; smaller is better: no empty records, all fields known, then common layouts.

    Of two that fit, the one with more records in the same bytes is right: the other reads every second record as a sort
    id.
    """
    bits = each.framing.bits
    is_named_source = bits == 8 and not each.probe.has_zero_words and not each.probe.has_high_words
    usual = 0 if is_named_source or (bits == 8 and each.record == "example_batch") else 1 + _USUAL.index(bits)
    return (each.probe.empty > 0, each.probe.has_high_words, -each.share, each.density, usual)


def _choose(fitting: list[_Candidate]) -> Detection:
    best = fitting[0]
    same = tuple(
        each.framing
        for each in fitting[1:]
        if (each.probe.records, each.probe.bytes, each.probe.empty, each.probe.fits)
        == (best.probe.records, best.probe.bytes, best.probe.empty, best.probe.fits)
    )
    fit = "all" if best.share == 1.0 else f"{best.share:.0%} of"
    sentences = [f"sizes chain over {_count(best.probe)}", f"{fit} their fields fit {best.record}"]
    if same:
        others = ", ".join(map(repr, same))
        sentences.append(f"{others} read the same records: the words before the sizes do not distinguish them")
    confidence: Confidence = "likely" if best.share >= 0.5 and not best.probe.empty else "possible"
    return _found(best, confidence, sentences, same)


def _found(
    made: _Candidate, confidence: Confidence, sentences: list[str], alternatives: tuple[Framing, ...] = ()
) -> Detection:
    return Detection(
        compression="none",
        framing=made.framing,
        record=made.record,
        confidence=confidence,
        evidence=tuple(sentences),
        alternatives=alternatives,
    )


def _count(probe: _native.FramingProbe) -> str:
    empty = f" ({probe.empty} of them empty)" if probe.empty else ""
    return f"{probe.records} record{'' if probe.records == 1 else 's'}{empty} in {probe.bytes} bytes"


def _first_damage(head: bytes, is_whole: bool) -> str:
    default = Framing()
    damage = _native.probe_framing(default.bits, head, _MOST_RECORDS, is_whole).damage
    return f"with {default!r}: {damage}" if damage else f"the first {len(head)} bytes contain no complete record"


# --- text -------------------------------------------------------------------------------------------------------------

# Top-level names that identify a message type, the most specific first.
_TELLING: tuple[tuple[str, RecordKind], ...] = (
    ("named_feature_list", "example_batch"),
    ("named_raw_feature_list", "example_batch"),
    ("shared_feature", "example_batch_row_major"),
    ("named_feature", "example"),
    ("named_raw_feature", "example"),
    ("features", "tf_example"),
    ("fid", "instance"),
    ("feature", "instance"),
    ("label", "instance"),
    ("line_id", "instance"),
)
_PBTXT_LINE = re.compile(r"([A-Za-z_]\w*)\s*(:\s*\S.*|\{.*|<.*)|[}>]\s*;?")
_DUMP_LINE = re.compile(r'("?\w+"?|\d+)\s*:.*')


def _as_text(head: bytes, is_whole: bool) -> Detection | None:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.end < len(head) - 3 or error.reason != "unexpected end of data":
            return None
        text = head[: error.start].decode()
    if any(char < " " and char not in "\t\n\r" for char in text):
        return None
    style, names = _style(text, is_whole)
    record = next((kind for name, kind in _TELLING if name in names), None)
    forms = {"json": "JSON", "pbtxt": "a text proto", "dump": "a dump of keys", "other": "text"}
    sentences = [f"it is {forms[style]}, not framed records"]
    if record is not None:
        sentences.append(f"its names are those of {record}")
    return Detection(
        compression="none",
        framing=None,
        record=record,
        confidence="likely" if record is not None else "none",
        evidence=tuple(sentences),
        text=style,
    )


def _style(text: str, is_whole: bool) -> tuple[TextStyle, set[str]]:
    """Return the style of the text, and the names at its top level."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not is_whole and len(lines) > 1:
        lines.pop()  # it may be cut off
    if text.lstrip()[:1] in ("{", "["):
        return "json", _json_names(text)
    if lines and lines[0].strip('"').startswith("root") and all(map(_DUMP_LINE.fullmatch, lines)):
        return "dump", {line.split(":")[0].strip('"') for line in lines}
    if lines and all(map(_PBTXT_LINE.fullmatch, lines)):
        return "pbtxt", _top_names(lines)
    return "other", set()


def _json_names(text: str) -> set[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply to be read
        return set(re.findall(r'"(\w+)"\s*:', text))
    value = value[0] if isinstance(value, list) and value else value
    return set(value) if isinstance(value, dict) else set()


def _top_names(lines: list[str]) -> set[str]:
    names, depth = set(), 0
    for line in lines:
        match = _PBTXT_LINE.fullmatch(line)
        if depth == 0 and match and match[1]:
            names.add(match[1])
        depth += line.count("{") - line.count("}")
    return names
