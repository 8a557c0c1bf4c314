from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from monolith.core import freed_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")

STEPS = """
import resource
{before}

def step():
    pieces = [b"x" * (2 << 20) for _ in range(24)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

step()
first = faults()
for _ in range(4):
    step()
print(faults() - first)
"""
KEEP = "from monolith.core.freed_memory import keep_freed_memory; keep_freed_memory()"
ESTIMATOR = """
import monolith as mt

class Ranker(mt.Model):
    def __init__(self):
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_slice(["user"], "vec", dim=4)

mt.Estimator(Ranker, mt.RunConfig())
"""


def page_faults(before: str, **settings: str) -> int:
    """Return the page faults of four steps that take and free 48 MiB each."""
    environment = {name: value for name, value in os.environ.items() if name not in freed_memory._SETTINGS_OF_USERS}
    command = [sys.executable, "-c", STEPS.format(before=before)]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("before", [KEEP, ESTIMATOR])
def test_the_pages_of_a_step_serve_the_next_one(before: str) -> None:
    assert page_faults(before) < 50


@pytest.mark.parametrize("setting", [{"MALLOC_TRIM_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.check=0"}])
def test_settings_of_the_environment_stay(setting: dict[str, str]) -> None:
    assert page_faults(KEEP, **setting) > 90
