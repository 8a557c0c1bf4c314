"""What every test shares: a repeatable hypothesis profile, and a seed that is printed."""

from __future__ import annotations

import os
import random

import hypothesis
import pytest

# No deadline: the machine's load must not decide a test. A failure prints the line that repeats it.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_SEED = int(os.environ.get("TEST_SEED", random.SystemRandom().randrange(2**32)))


def pytest_report_header() -> str:
    return f"random seed: {_SEED} (repeat with TEST_SEED={_SEED})"


@pytest.fixture
def seed() -> int:
    """A seed for tests that draw their own random numbers: another one each run, named in the header."""
    return _SEED
