"""What every test shares: a repeatable hypothesis profile, a seed that is printed, certificates, and the original's
sample files.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

# One process per core runs tests. Threads of OpenMP that wait for a busy core spin, which doubles the work of torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch compiles a program per instruction set to learn that the compiler knows it. Compilers of this project do.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import hypothesis
import pytest

from monolith.testing.processes.certificates import Authority, why_no_certificates
from preloaded_popen import PreloadedPopen, start_preloading, why_not_preloaded

# A shell ignores Ctrl-C for commands in its background, and processes of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Suites that are shipped: without this, their failures would not show the values.
pytest.register_assert_rewrite("monolith.testing.suites.discovery_suite", "monolith.testing.suites.zookeeper_suite")

# No deadline: the machine's load must not decide a test. A failure prints the line that repeats it.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
# Continuous integration judges the change, not the day's luck; developers' machines look for what nobody has met yet.
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default"))

_LONG = (
    "tests/integration/",
    "tests/unit/test_examples.py",
    "tests/unit/layers/",
    "tests/unit/benchmarks/",
    "tests/unit/embedding/test_table_properties.py",
)

# In the environment, so that the processes that run tests have the seed that the header names.
_SEED = int(os.environ.setdefault("TEST_SEED", str(random.SystemRandom().randrange(2**32))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Fork the processes that run tests from one interpreter, which imports the test modules for all of them."""
    if why_not_preloaded() is None:
        patch = pytest.MonkeyPatch()
        patch.setattr(subprocess, "Popen", PreloadedPopen)
        config.add_cleanup(patch.undo)
        start_preloading(config.args)


def pytest_report_header() -> str:
    return f"random seed: {_SEED} (repeat with TEST_SEED={_SEED})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with long tests first: a long file that starts last would leave the other processes idle."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))  # stable, so a file stays together


def pytest_collection_finish() -> None:
    """Take thousands of collected tests out of every later garbage collection, which would visit them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _fork_programs() -> Iterator[None]:
    """Fork the processes of ``monolith`` that tests start; MONOLITH_TEST_PRELOAD=0 executes each of them instead."""
    with pytest.MonkeyPatch.context() as patch:
        if why_not_preloaded() is None:
            patch.setattr(subprocess, "Popen", PreloadedPopen)
        yield


@pytest.fixture
def seed() -> int:
    """A seed for tests that draw their own random numbers: another one each run, named in the header."""
    return _SEED


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates; the test is skipped where none can be made."""
    if why := why_no_certificates():
        pytest.skip(why)
    return Authority(tmp_path_factory.mktemp("authority"))


# The original's sample files are not part of this repository: they may lie beside it, or wherever the variable says.
_FIXTURES = Path(os.environ.get("MONOLITH_FIXTURES", Path(__file__).parents[2] / "shared" / "fixtures"))


@pytest.fixture
def sample() -> Callable[[str], str]:
    """Reads one of the original's sample files as text; the test is skipped where they are absent."""

    def read(name: str) -> str:
        path = _FIXTURES / name
        if not path.is_file():
            pytest.skip(f"{path} is absent; MONOLITH_FIXTURES names the folder of the original's sample files")
        return path.read_text()

    return read
