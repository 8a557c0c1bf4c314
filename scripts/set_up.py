#!/usr/bin/env python3
"""Creates the environment of the repository and shows its progress: set_up.py tools|packages|native.

- ``tools VENV LOCK``: creates the environment and installs the few locked packages that a compilation needs.
- ``packages VENV LOCK``: installs all locked packages. uv installs them in parallel; pip does where uv cannot be had.
  uv gets the indexes and certificates of pip's configuration. Then imports the largest packages once, so that their
  cached bytecode exists before the first command.
- ``native VENV BUILD``: compiles the extension into BUILD and installs the package in editable form. Counts compiled
  files on the screen. The whole output is in BUILD.log; a failure prints its end.

After ``tools``, the other two may run at the same time: downloads wait for the network, compilers for the processor.
Runs on the interpreter of the machine, so it imports the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_OLDEST = (3, 11)
_LINES_OF_A_FAILURE = 60
_LARGE_PACKAGES = ("torch._dynamo", "onnxruntime", "pyarrow.parquet")
_SECONDS_BETWEEN_LINES = 20
# Packages of a compilation: the build backend with its requirements, its generator, and the headers of the bindings.
_TOOLS = ("cmake", "nanobind", "ninja", "packaging", "pathspec", "scikit_build_core")
_SETTINGS = {  # pip's setting: uv's variable
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


def show(text: str) -> None:
    """Print a line of progress. On a terminal it replaces an unfinished line of the counter."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}setup: {text}", file=sys.stderr, flush=True)


def translate_settings(lines: Sequence[str]) -> dict[str, str]:
    """Return uv's variables for the lines of ``pip config list``. A later line wins, as the environment does in pip."""
    variables = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        match = re.fullmatch(r"(?:\w+|:env:)\.([\w-]+)='(.*)'", line.strip())
        if match and (variable := _SETTINGS.get(match[1])):
            variables[variable] = " ".join(match[2].replace("\\n", " ").split())
    if "UV_FIND_LINKS" in variables:  # uv separates folders by commas
        variables["UV_FIND_LINKS"] = variables["UV_FIND_LINKS"].replace(" ", ",")
    return variables


def read_uv_settings(python: Path) -> dict[str, str]:
    """Return uv's variables for the configuration of pip. A variable of the environment may replace each."""
    command = [python, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **translate_settings(lines)}


def find_uv(python: Path, lock: Path) -> str | None:
    """Return the path of uv, installed into the environment if need be; None where it cannot be had."""
    if uv := shutil.which("uv") or shutil.which(str(python.parent / "uv")):
        return uv
    pin = re.search(r"^uv==\S+$", lock.read_text(), re.MULTILINE)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", pin[0] if pin else "uv"]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
        return str(python.parent / "uv")
    return None


def select_tools(lock: str) -> list[str]:
    """Return the lines of a lock file that pin packages of a compilation."""
    return [line for line in lock.splitlines() if line.split("==")[0].lower().replace("-", "_") in _TOOLS]


def install(venv: Path, lock: Path, requirements: Sequence[str | Path]) -> int:
    """Install ``requirements``, arguments of uv and pip, into the environment; return the exit status."""
    python = venv / "bin" / "python"
    if uv := find_uv(python, lock):
        # The list of 120 installed versions hides the line that counts them.
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *requirements]
        if wait_for(command, {**read_uv_settings(python), **os.environ}) == 0:
            return 0
        show("uv failed; trying pip")
    else:
        show("uv is not available; installing with pip")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    return wait_for(pip, dict(os.environ))


def wait_for(command: Sequence[str | Path], environment: dict[str, str]) -> int:
    """Run an installer and return its exit status. A line from time to time shows that it works."""
    started = time.monotonic()
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                return process.wait(_SECONDS_BETWEEN_LINES)
            except subprocess.TimeoutExpired:
                show(f"      installing packages, {time.monotonic() - started:.0f} s")


def can_install(venv: Path) -> bool:
    """Return whether the environment exists and packages can be installed into it."""
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    if shutil.which("uv") or (venv / "bin" / "uv").exists():
        return True
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def install_tools(venv: Path, lock: Path) -> int:
    """Create the environment and install the packages of a compilation; return the exit status."""
    if sys.version_info < _OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        show(f"Python is {version}, expected 3.11 or newer; name another one: make PYTHON=python3.12")
        return 1
    if not can_install(venv):  # absent, or an earlier setup was stopped while it created it
        show(f"[1/3] creating {venv} with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    return install(venv, lock, select_tools(lock.read_text()))


def install_packages(venv: Path, lock: Path) -> int:
    """Install the locked packages into the environment; return the exit status."""
    count = len(re.findall(r"^[\w.-]+==", lock.read_text(), re.MULTILINE))
    started = time.monotonic()
    show(f"[2/3] installing {count} packages")
    status = install(venv, lock, ["--requirement", lock])
    if status == 0:
        show(f"      installed {count} packages in {time.monotonic() - started:.0f} s")
        # A failed import is reported by the command that needs the package.
        command = [venv / "bin" / "python", "-c", f"import {', '.join(_LARGE_PACKAGES)}"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    return status


class Counter:
    """Shows how many files are compiled: in place on a terminal, else at each quarter."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._quarter = 0

    def show(self, done: int, total: int) -> None:
        """Show a count."""
        text = f"      compiled {done} of {total} files, {time.monotonic() - self._started:.0f} s"
        if sys.stderr.isatty():
            print(f"\rsetup: {text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif 4 * done // total > self._quarter:
            self._quarter = 4 * done // total
            show(text)


def build_native(venv: Path, build: Path) -> int:
    """Compile the extension and install the package in editable form; return the exit status."""
    log = build.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    show(f"[3/3] compiling the C++ engine on {os.cpu_count()} cores; output in {log}")
    command = [
        venv / "bin" / "python", "-m", "pip", "install", "--verbose", "--disable-pip-version-check",
        "--no-build-isolation", "--no-deps", f"-Cbuild-dir={build}", "--editable", ".",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # else pip shows the count after the build
    # Ninja takes its jobs from a make above, which counts the installation of packages as one.
    environment.pop("MAKEFLAGS", None)
    counter, lines = Counter(), []
    with (
        log.open("w", buffering=1) as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines = [*lines[1 - _LINES_OF_A_FAILURE :], line]
            if step := re.match(r"\s*\[(\d+)/(\d+)\] ", line):
                counter.show(int(step[1]), int(step[2]))
    if process.returncode:
        print("".join(lines), file=sys.stderr)
        show(f"compilation failed; the whole output is in {log}")
    return process.returncode


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand."""
    commands = {"tools": install_tools, "packages": install_packages, "native": build_native}
    if len(arguments) != 3 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    return commands[arguments[0]](Path(arguments[1]), Path(arguments[2]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
