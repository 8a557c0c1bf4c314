"""CityHash64 (version 1.1) in plain Python: the hash behind every feature id made from a value.

For one value at a time: configuration, tools, tests. Columns of values are hashed by the native engine, and a parity
test keeps the two equal. The hash is part of the data format (it decides ids on disk), so it can never change.
"""

from __future__ import annotations

__all__ = ["city_hash64"]

_MASK = 0xFFFFFFFFFFFFFFFF
# The three odd 64-bit multipliers that define this hash.
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F
_PAIR_MUL = 0x9DDFEA08EB382D69


def city_hash64(data: bytes) -> int:
    """Return the hash of ``data`` as an unsigned 64-bit number.

    >>> hex(city_hash64(b"ios"))
    '0x19463df5d8064574'
    """
    size = len(data)
    if size <= 16:
        return _hash_0_to_16(data)
    if size <= 32:
        return _hash_17_to_32(data)
    if size <= 64:
        return _hash_33_to_64(data)
    return _hash_long(data)


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotate(value: int, shift: int) -> int:
    return ((value >> shift) | (value << (64 - shift))) & _MASK


def _shift_mix(value: int) -> int:
    return value ^ (value >> 47)


def _swap_bytes(value: int) -> int:
    return int.from_bytes(value.to_bytes(8, "little"), "big")


def _mix_pair(low: int, high: int, mul: int = _PAIR_MUL) -> int:
    a = _shift_mix(((low ^ high) * mul) & _MASK)
    b = _shift_mix(((high ^ a) * mul) & _MASK)
    return (b * mul) & _MASK


def _hash_0_to_16(data: bytes) -> int:
    size = len(data)
    if size >= 8:
        mul = _K2 + size * 2
        a = (_u64(data, 0) + _K2) & _MASK
        b = _u64(data, size - 8)
        c = (_rotate(b, 37) * mul + a) & _MASK
        d = ((_rotate(a, 25) + b) * mul) & _MASK
        return _mix_pair(c, d, mul)
    if size >= 4:
        mul = _K2 + size * 2
        return _mix_pair(size + (_u32(data, 0) << 3), _u32(data, size - 4), mul)
    if size > 0:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return (_shift_mix(((y * _K2) ^ (z * _K0)) & _MASK) * _K2) & _MASK
    return _K2


def _hash_17_to_32(data: bytes) -> int:
    size = len(data)
    mul = _K2 + size * 2
    a = (_u64(data, 0) * _K1) & _MASK
    b = _u64(data, 8)
    c = (_u64(data, size - 8) * mul) & _MASK
    d = (_u64(data, size - 16) * _K2) & _MASK
    low = (_rotate((a + b) & _MASK, 43) + _rotate(c, 30) + d) & _MASK
    high = (a + _rotate((b + _K2) & _MASK, 18) + c) & _MASK
    return _mix_pair(low, high, mul)


def _hash_33_to_64(data: bytes) -> int:
    size = len(data)
    mul = _K2 + size * 2
    a = (_u64(data, 0) * _K2) & _MASK
    b = _u64(data, 8)
    c = _u64(data, size - 24)
    d = _u64(data, size - 32)
    e = (_u64(data, 16) * _K2) & _MASK
    f = (_u64(data, 24) * 9) & _MASK
    g = _u64(data, size - 8)
    h = (_u64(data, size - 16) * mul) & _MASK
    u = (_rotate((a + g) & _MASK, 43) + (_rotate(b, 30) + c) * 9) & _MASK
    v = (((a + g) ^ d) + f + 1) & _MASK
    w = (_swap_bytes(((u + v) * mul) & _MASK) + h) & _MASK
    x = (_rotate((e + f) & _MASK, 42) + c) & _MASK
    y = ((_swap_bytes(((v + w) * mul) & _MASK) + g) * mul) & _MASK
    z = (e + f + c) & _MASK
    a = (_swap_bytes(((x + z) * mul + y) & _MASK) + b) & _MASK
    b = (_shift_mix(((z + a) * mul + d + h) & _MASK) * mul) & _MASK
    return (b + x) & _MASK


def _weak_hash_32(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_u64(data, at + offset) for offset in (0, 8, 16, 24))
    a = (a + w) & _MASK
    b = _rotate((b + a + z) & _MASK, 21)
    c = a
    a = (a + x + y) & _MASK
    b = (b + _rotate(a, 44)) & _MASK
    return (a + z) & _MASK, (b + c) & _MASK


def _hash_long(data: bytes) -> int:
    size = len(data)
    x = _u64(data, size - 40)
    y = (_u64(data, size - 16) + _u64(data, size - 56)) & _MASK
    z = _mix_pair((_u64(data, size - 48) + size) & _MASK, _u64(data, size - 24))
    v = _weak_hash_32(data, size - 64, size, z)
    w = _weak_hash_32(data, size - 32, (y + _K1) & _MASK, x)
    x = (x * _K1 + _u64(data, 0)) & _MASK
    # The tail was read above, so the loop covers whole blocks of 64 bytes and leaves out the last, partial one.
    for at in range(0, (size - 1) & ~63, 64):
        x = (_rotate((x + y + v[0] + _u64(data, at + 8)) & _MASK, 37) * _K1) & _MASK
        y = (_rotate((y + v[1] + _u64(data, at + 48)) & _MASK, 42) * _K1) & _MASK
        x ^= w[1]
        y = (y + v[0] + _u64(data, at + 40)) & _MASK
        z = (_rotate((z + w[0]) & _MASK, 33) * _K1) & _MASK
        v = _weak_hash_32(data, at, (v[1] * _K1) & _MASK, (x + w[0]) & _MASK)
        w = _weak_hash_32(data, at + 32, (z + w[1]) & _MASK, (y + _u64(data, at + 16)) & _MASK)
        z, x = x, z
    return _mix_pair(
        (_mix_pair(v[0], w[0]) + _shift_mix(y) * _K1 + z) & _MASK,
        (_mix_pair(v[1], w[1]) + x) & _MASK,
    )
