"""``monolith train`` lets torch keep freed memory for a second, where torch has an allocator that returns it sooner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("given", "expected"), [(None, "1000"), ("7", "7")])
def test_torch_reads_the_delay_when_it_is_imported(tmp_path: Path, given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    environment |= {"MIMALLOC_VERBOSE": "1"} | ({} if given is None else {"MIMALLOC_PURGE_DELAY": given})
    # The program instead of python -m, which tests fork from a process that has imported torch.
    command = [Path(sys.executable).with_name("monolith"), "train", "--task", "deepfm", "--print-config"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    delays = re.findall(r"option 'purge_delay': (\d+)", done.stderr)
    if not delays:
        pytest.skip("this build of torch has no mimalloc")
    assert set(delays) == {expected}
