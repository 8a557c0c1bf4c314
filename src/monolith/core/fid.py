"""Feature ids: the two bit layouts, and the ways from values to ids.

A feature id (fid) names one value of one feature: a *slot* (the feature) and a *signature* (the value) in 64 bits.

=======  ========================================================  ===========  =========
version  bits 63..0                                                slots        signature
=======  ========================================================  ===========  =========
v1       slot: 10 bits (63..54), signature: 54 bits (53..0)        0..1023      54 bits
v2       zero: bit 63, slot: 15 bits (62..48), signature: 48 bits  0..32767     48 bits
=======  ========================================================  ===========  =========

Every function takes ids as signed or unsigned 64-bit numbers and returns **signed int64 bit patterns**, because that
is how tables and tensors carry them: a v1 id of slot 512 or above is negative. ``as_unsigned`` shows the other face.
Functions of ids take one Python int (and return one) or an array (and return an int64 array of the same shape).

``id_of`` is the one rule from a value to its id. Files, frames, requests and clients follow it; the page
``docs/reference/ids.md`` has its table. An id without a slot keeps all 64 bits of an integer.

The layouts are mirrored by ``cpp/engine/include/engine/fid.h``, the rule by ``engine/data/value_ids.h``.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

from monolith.core.cityhash import city_hash64
from monolith.core.errors import ConfigError

__all__ = [
    "Version",
    "V1_SIGNATURE_BITS",
    "V1_SLOTS",
    "V2_SIGNATURE_BITS",
    "V2_SLOTS",
    "as_signed",
    "as_unsigned",
    "make_v1",
    "make_v2",
    "slot_v1",
    "slot_v2",
    "signature_v1",
    "signature_v2",
    "v1_to_v2",
    "switch_slot",
    "VALUE_TYPES",
    "ValueType",
    "check_value_type",
    "id_of",
    "from_value",
    "from_int64",
    "cross",
    "city_hash64",
]

Version: TypeAlias = Literal[1, 2]
ValueType: TypeAlias = Literal["integer", "text", "fid", "bucket", "slot48"]
"""Values that a feature has.

=========  =========================================================================================================
integer    An integer is its own id. Decimal text and whole floats become integers.
text       The id is the CityHash64 of the bytes. An integer becomes its decimal text.
fid        Ids are ready-made. A plain value shares the 64 bits with the feature's slot.
bucket     A number falls into its power of two, beside the slot.
slot48     Rule of models that earlier releases trained: slot and the low 48 bits of the value or of its hash.
=========  =========================================================================================================
"""
VALUE_TYPES: tuple[ValueType, ...] = get_args(ValueType)
IdArray: TypeAlias = npt.NDArray[np.int64]

V1_SLOTS = 1 << 10
V1_SIGNATURE_BITS = 54
V2_SLOTS = 1 << 15
V2_SIGNATURE_BITS = 48

_LAYOUTS: dict[int, tuple[int, int]] = {1: (V1_SLOTS, V1_SIGNATURE_BITS), 2: (V2_SLOTS, V2_SIGNATURE_BITS)}
_U64_MASK = (1 << 64) - 1
_DECIMAL = re.compile(rb"0|-?[1-9][0-9]{0,19}")


def as_signed(fid: int) -> int:
    """Return the signed int64 that has the bits of ``fid``.

    >>> as_signed(0xFFFFFFFFFFFFFFFF)
    -1
    """
    bits = as_unsigned(fid)
    return bits - (1 << 64) if bits >> 63 else bits


def as_unsigned(fid: int) -> int:
    """Return the unsigned 64-bit number that has the bits of ``fid``.

    Raises:
        ConfigError: ``fid`` does not fit 64 bits.
    """
    if not -(1 << 63) <= fid <= _U64_MASK:
        raise ConfigError(f"fid {fid} does not fit 64 bits; pass an int64 or a uint64")
    return int(fid) & _U64_MASK


def make_v1(slot: int, signature: int) -> int:
    """Return the v1 id of ``slot`` and the low 54 bits of ``signature``.

    Raises:
        ConfigError: ``slot`` is outside 0..1023.

    >>> make_v1(1, 100) == (1 << 54) + 100
    True
    """
    return _make(slot, signature, 1)


def make_v2(slot: int, signature: int) -> int:
    """Return the v2 id of ``slot`` and the low 48 bits of ``signature``.

    Raises:
        ConfigError: ``slot`` is outside 0..32767.
    """
    return _make(slot, signature, 2)


@overload
def slot_v1(fids: int) -> int: ...
@overload
def slot_v1(fids: npt.ArrayLike) -> IdArray: ...
def slot_v1(fids: Any) -> Any:
    """Return the slot of one v1 id or of each in an array."""
    if isinstance(fids, int):
        return as_unsigned(fids) >> V1_SIGNATURE_BITS
    return (_bits(fids) >> np.uint64(V1_SIGNATURE_BITS)).view(np.int64)


@overload
def slot_v2(fids: int) -> int: ...
@overload
def slot_v2(fids: npt.ArrayLike) -> IdArray: ...
def slot_v2(fids: Any) -> Any:
    """Return the slot of one v2 id or of each in an array; the reserved top bit is ignored."""
    if isinstance(fids, int):
        return (as_unsigned(fids) >> V2_SIGNATURE_BITS) & (V2_SLOTS - 1)
    return ((_bits(fids) >> np.uint64(V2_SIGNATURE_BITS)) & np.uint64(V2_SLOTS - 1)).view(np.int64)


@overload
def signature_v1(fids: int) -> int: ...
@overload
def signature_v1(fids: npt.ArrayLike) -> IdArray: ...
def signature_v1(fids: Any) -> Any:
    """Return the 54-bit signature of one v1 id or of each in an array."""
    return _signature(fids, V1_SIGNATURE_BITS)


@overload
def signature_v2(fids: int) -> int: ...
@overload
def signature_v2(fids: npt.ArrayLike) -> IdArray: ...
def signature_v2(fids: Any) -> Any:
    """Return the 48-bit signature of one v2 id or of each in an array."""
    return _signature(fids, V2_SIGNATURE_BITS)


@overload
def v1_to_v2(fids: int) -> int: ...
@overload
def v1_to_v2(fids: npt.ArrayLike) -> IdArray: ...
def v1_to_v2(fids: Any) -> Any:
    """Return the v2 form of one v1 id or of each in an array.

    The slot is kept and the top 6 bits of the signature are dropped, so two v1 ids may become one v2 id. Tables are
    collisionless for the ids they are given, which means from this step on.

    >>> v1_to_v2(make_v1(1, 100)) == make_v2(1, 100)
    True
    """
    if isinstance(fids, int):
        return make_v2(slot_v1(fids), signature_v2(fids))
    bits = _bits(fids)
    slots = bits >> np.uint64(V1_SIGNATURE_BITS)
    return ((slots << np.uint64(V2_SIGNATURE_BITS)) | (bits & np.uint64((1 << V2_SIGNATURE_BITS) - 1))).view(np.int64)


@overload
def switch_slot(fids: int, slot: int, version: Version = 2) -> int: ...
@overload
def switch_slot(fids: npt.ArrayLike, slot: int, version: Version = 2) -> IdArray: ...
def switch_slot(fids: Any, slot: int, version: Version = 2) -> Any:
    """Return one id, or each in an array, with its signature kept and its slot replaced.

    Raises:
        ConfigError: ``slot`` does not exist in this version.
    """
    slot_bits = as_unsigned(_make(slot, 0, version))
    _, signature_bits = _LAYOUTS[version]
    if isinstance(fids, int):
        return as_signed(slot_bits | _signature(fids, signature_bits))
    signatures = _bits(fids) & np.uint64((1 << signature_bits) - 1)
    return (signatures | np.uint64(slot_bits)).view(np.int64)


def check_value_type(value_type: str | None, where: str) -> None:
    """Raise ``ConfigError`` unless ``value_type`` is a ``ValueType`` or None."""
    if value_type is not None and value_type not in VALUE_TYPES:
        raise ConfigError(f"value_type of {where} is {value_type!r}, expected one of {', '.join(VALUE_TYPES)}")


def id_of(
    value: int | float | str | bytes,
    *,
    value_type: Literal["integer", "text"] | None = None,
    slot: int | None = None,
    hash_wide: bool = False,
) -> int:
    """Return the id of a value: the rule of files, frames, requests and clients.

    Without a slot, an integer is its own id, and text has the 64 bits of its CityHash64. With a slot, both share the
    64 bits: an integer must fit 48 bits, and text keeps 48 bits of its hash.

    Args:
        value: An integer, a whole float, text or bytes.
        value_type: Type of the feature. ``integer`` also takes decimal text, ``text`` also takes integers; None takes
            the type of the value.
        slot: Slot of the feature, for features whose ``value_type`` is ``fid``; else None.
        hash_wide: Hash an integer that does not fit beside the slot, instead of raising.

    Raises:
        ConfigError: The value does not have the type, or does not fit.

    >>> id_of(2**50 + 1), id_of("7", value_type="integer"), id_of(7, value_type="text") == id_of("7")
    (1125899906842625, 7, True)
    >>> id_of(7, slot=3) == make_v2(3, 7)
    True
    """
    if value_type not in (None, "integer", "text"):
        raise ConfigError(f"value_type is {value_type!r}, expected 'integer', 'text' or None")
    plain = _plain_value(value)
    if value_type == "integer" and isinstance(plain, bytes):
        if _DECIMAL.fullmatch(plain) is None:
            raise ConfigError(f"value is {value!r}, expected an integer; use value_type='text' for text")
        plain = int(plain)
    if value_type == "text" and isinstance(plain, int):
        plain = str(plain).encode()
    if isinstance(plain, bytes):
        hashed = city_hash64(plain)
        return as_signed(hashed) if slot is None else _make(slot, hashed, 2)
    if slot is None or 0 <= plain < 1 << V2_SIGNATURE_BITS:
        return as_signed(plain) if slot is None else _make(slot, plain, 2)
    if not hash_wide:
        raise ConfigError(
            f"value is {value!r}, expected 0 to 2^48 - 1 beside slot {slot}; leave the slot out to keep all 64 bits, "
            "or give hash_wide=True"
        )
    return from_int64(slot, plain)


def _plain_value(value: Any) -> int | bytes:
    """Return the integer or the bytes of a value."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) <= _most_whole(value):
        return int(value)
    if isinstance(value, np.bool_ | bool) or not isinstance(value, int | np.integer | bytes):
        raise ConfigError(
            f"value is {value!r} of type {type(value).__name__}, expected an integer, a whole float, text or bytes"
        )
    return value if isinstance(value, bytes) else int(value)


def _most_whole(value: float | np.floating[Any]) -> int:
    """Return the number up to which the type of ``value`` holds every integer: 2^53, for float32 2^24."""
    return 1 << (min(53, np.finfo(type(value)).nmant + 1) if isinstance(value, np.floating) else 53)


def from_value(slot: int, value: str | bytes | int, version: Version = 2) -> int:
    """Return the id that the original's feature extractor makes: ``slot``, and the CityHash64 of the value's text.

    In version 2 it is ``id_of(value, value_type="text", slot=slot)``.

    Neither slot nor feature name enters the hash, so equal values have equal signatures in all slots. An int is
    hashed as its decimal text: ``12074`` and ``"12074"`` are the same value. Bytes are taken as text already encoded.

    Raises:
        ConfigError: ``slot`` does not exist in this version, or ``value`` is of another type.

    >>> from_value(52, "ios", version=1), from_value(52, "ios")
    (938505698453898612, 14704824889525620)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes):
        raise ConfigError(
            f"value for slot {slot} must be str, bytes or int, got {type(value).__name__} {value!r}; "
            "put floats into buckets first"
        )
    return _make(slot, city_hash64(value), version)


def from_int64(slot: int, value: int, version: Version = 2) -> int:
    """Return the id of an integer whose eight little-endian bytes are hashed, not its text.

    The original's ``ExtractFid`` operator makes such ids; ``from_value`` makes those of its feature extractor.

    >>> from_int64(4, 185)
    1153447759131936
    """
    return _make(slot, city_hash64(as_unsigned(value).to_bytes(8, "little")), version)


def cross(fid_a: int, fid_b: int, slot: int, version: Version = 2) -> int:
    """Return the id, in ``slot``, of the combination of two ids.

    The signature is the high half xor the low half of the 128-bit product of the two ids, all 64 bits of each. The
    order of the two does not matter. Ids of one version give another cross than the same values' ids of the other
    version: the original crosses v1 ids, and ``cross(a, b, slot)`` of v1 ids equals
    ``v1_to_v2(cross(a, b, slot, version=1))``.

    Raises:
        ConfigError: ``slot`` does not exist in this version.
    """
    product = as_unsigned(fid_a) * as_unsigned(fid_b)
    return _make(slot, (product >> 64) ^ (product & _U64_MASK), version)


def _make(slot: int, signature: int, version: int) -> int:
    if version not in _LAYOUTS:
        raise ConfigError(f"fid version must be 1 or 2, got {version!r}")
    slots, signature_bits = _LAYOUTS[version]
    if not 0 <= slot < slots:
        raise ConfigError(f"slot {slot} is outside 0..{slots - 1}, the slots of fid version {version}")
    return as_signed((int(slot) << signature_bits) | (int(signature) & ((1 << signature_bits) - 1)))


def _signature(fids: Any, signature_bits: int) -> Any:
    mask = (1 << signature_bits) - 1
    if isinstance(fids, int):
        return as_unsigned(fids) & mask
    return (_bits(fids) & np.uint64(mask)).view(np.int64)


def _bits(fids: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    array = np.asarray(fids)
    if array.size == 0 and array.dtype == np.float64:  # NumPy's type of an empty list
        array = array.astype(np.int64)
    if array.dtype == np.uint64:
        return array.astype(np.uint64, copy=False)
    if array.dtype == np.int64:
        return array.view(np.uint64)
    raise ConfigError(f"fids must be int64 or uint64, got {array.dtype}; convert them, a narrower type has lost bits")
