"""The type stub of the native module is what the module itself says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_checked_in_stub_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "_native.pyi"
    subprocess.run([ROOT / "scripts/write_stub.sh", sys.executable, fresh], check=True)
    assert fresh.read_text() == (ROOT / "src/monolith/_native.pyi").read_text(), "run `make stub`"
