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

The layouts are mirrored by ``cpp/engine/include/engine/fid.h``. Which slot belongs to which feature name, and how
numbers are put into buckets before they are hashed, is the caller's choice.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, overload

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
    "from_value",
    "from_int64",
    "cross",
    "city_hash64",
]

Version: TypeAlias = Literal[1, 2]
IdArray: TypeAlias = npt.NDArray[np.int64]

V1_SLOTS = 1 << 10
V1_SIGNATURE_BITS = 54
V2_SLOTS = 1 << 15
V2_SIGNATURE_BITS = 48

_LAYOUTS: dict[int, tuple[int, int]] = {1: (V1_SLOTS, V1_SIGNATURE_BITS), 2: (V2_SLOTS, V2_SIGNATURE_BITS)}
_U64_MASK = (1 << 64) - 1


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


def from_value(slot: int, value: str | bytes | int, version: Version = 2) -> int:
    """Return the id of ``value`` in ``slot``: its signature is the CityHash64 of the value's UTF-8 text.

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
