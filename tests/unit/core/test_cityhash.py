from __future__ import annotations

import pytest

from monolith.core.cityhash import city_hash64

PATTERN = bytes(range(256)) * 2


# One length on each side of every branch (0, 1-3, 4-7, 8-16, 17-32, 33-64, whole and partial blocks of 64), computed
# with the reference implementation of version 1.1.
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0x9AE16A3B2F90404F),
        (1, 0xBE6056EDF5E94B54),
        (3, 0x94A13D22E9EBA49A),
        (4, 0x82BFFD898958E540),
        (7, 0xA2E0BFF20DB0A6A1),
        (8, 0xAD5A13E1E8E93B98),
        (16, 0x0EFD25A0A34156D4),
        (17, 0xBBB6A6F8F20D1F1C),
        (32, 0x1A9D8199972CDF49),
        (33, 0x46E1378CBC22DABA),
        (64, 0xE99AB80F5EC7DCA5),
        (65, 0xAC589C990483DD2E),
        (127, 0xEFD614390A7B1D95),
        (128, 0x10B153630AF1F395),
        (129, 0x46BE8F236F918770),
        (200, 0xF4D24E8C7493C3D8),
        (512, 0xEE79A05E5EBE7A4F),
    ],
)
def test_the_hash_is_that_of_the_reference_at_every_branch(size: int, expected: int) -> None:
    assert city_hash64(PATTERN[:size]) == expected
