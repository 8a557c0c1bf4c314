"""Apply the mistakes of tests/mutants.toml one at a time in a scratch copy, run the mapped tests, and print the score.

    python scripts/mutants.py                        all
    python scripts/mutants.py --only durable_files   those whose file or text matches
    python scripts/mutants.py --sample 20 --seed 3   a random choice
    python scripts/mutants.py --check                only check that the list fits the code

A mutant is noticed when its tests fail or time out. Tests that also fail without the mutant make it invalid: run with
--baseline to check that first. Results are kept in build/mutants/report.jsonl, one line per mutant; --resume skips the
mutants that it holds. C++ mutants are built in build/mutants/cpp.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
SCRATCH = ROOT / "build" / "mutants"
TIMEOUT_S = 300
FEWEST = 100
"""Entries that must fit the code. An entry whose line has changed is stale, and skipped."""
_BUILD_TIMEOUT_S = 1800
_SMOKE = "tests/unit/serving/test_serving_metrics.py"
# The editable install answers `import monolith` before the path is searched.
_SITE = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "monolith" not in type(finder).__module__]
"""


# Imports the libraries of all tests once, and runs pytest in a forked child per line of standard input.
_HOST = """import json, os, sys
import numpy, torch, pytest, grpc  # not hypothesis: pytest warns of plugins that were imported before
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os._exit(pytest.main(json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """Whether the module must be rebuilt."""
        return self.file.startswith("cpp/")

    @property
    def title(self) -> str:
        """File, line and first changed text."""
        text = (ROOT / self.file).read_text()
        line = text[: text.find(self.old)].count("\n") + 1
        return f"{self.file}:{line} {' '.join(self.old.split())[:60]!r} -> {' '.join(self.new.split())[:60]!r}"


def read_mutants() -> list[Mutant]:
    """Return the list."""
    body = tomllib.loads(LIST.read_text())
    return [Mutant(each["file"], each["old"], each["new"], tuple(each["tests"])) for each in body["mutant"]]


def problems_of(mutants: list[Mutant]) -> list[str]:
    """Return the entries that do not fit the code."""
    problems = []
    for mutant in mutants:
        path = ROOT / mutant.file
        count = path.read_text().count(mutant.old) if path.exists() else 0
        if count != 1:
            problems.append(f"{mutant.file}: {mutant.old!r} occurs {count} times, expected once; adapt the entry")
        if mutant.old == mutant.new:
            problems.append(f"{mutant.file}: {mutant.old!r} stays the same; give another text")
        missing = [
            each for each in mutant.tests if not each.startswith("cpp:") and not (ROOT / each.split("::")[0]).exists()
        ]
        if missing or not mutant.tests:
            problems.append(f"{mutant.file}: tests are {missing or 'none'}, expected existing files; map the entry")
    return problems


class Overlay:
    """A copy of the package, first on the path of the tests. Later edits of the repository stay out of it."""

    def __init__(self) -> None:
        self.folder = SCRATCH / "overlay"
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(ROOT / "src" / "monolith", self.folder / "monolith", ignore=shutil.ignore_patterns("*.pyc"))
        (self.folder / "sitecustomize.py").write_text(_SITE)
        command = [sys.executable, "-c", "import monolith._native as native; print(native.__file__)"]
        built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
        self._native = self.folder / "monolith" / Path(built).name
        shutil.copy(built, self._native)
        self._original = Path(built)

    def put(self, mutant: Mutant) -> None:
        """Apply a mutant of Python code."""
        path = self.folder / Path(mutant.file).relative_to("src")
        path.write_text(path.read_text().replace(mutant.old, mutant.new))

    def undo(self, mutant: Mutant, original: str) -> None:
        """Restore the text of a file."""
        (self.folder / Path(mutant.file).relative_to("src")).write_text(original)

    def text_of(self, mutant: Mutant) -> str:
        """Return the text of a mutant's file."""
        return (self.folder / Path(mutant.file).relative_to("src")).read_text()

    def use_native(self, built: Path | None) -> None:
        """Use a built module; None for the original."""
        self._native.unlink()
        shutil.copy(built or self._original, self._native)

    def environment(self) -> dict[str, str]:
        """Return the environment of the tests."""
        return {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}


class NativeBuild:
    """A copy of the C++ code with a build folder that is kept between mutants."""

    def __init__(self) -> None:
        self._source = SCRATCH / "cpp"
        self.build = SCRATCH / "cpp-build"
        self._source.mkdir(parents=True, exist_ok=True)
        for name in ("CMakeLists.txt", "pyproject.toml"):
            shutil.copy2(ROOT / name, self._source / name)
        command = ["rsync", "-a", "--delete"] if shutil.which("rsync") else None
        if command:
            self._run([*command, f"{ROOT / 'cpp'}/", f"{self._source / 'cpp'}/"])
        else:
            shutil.rmtree(self._source / "cpp", ignore_errors=True)
            shutil.copytree(ROOT / "cpp", self._source / "cpp")
        environment = {**os.environ, "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else None
        options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
        self._run(["cmake", "-S", str(self._source), "-B", str(self.build), "-G", "Ninja", *options], environment)

    def make(self, mutant: Mutant | None, targets: list[str]) -> bool:
        """Build with a mutant, or without; return whether it compiles."""
        path = self._source / mutant.file if mutant else None
        if mutant and path:
            path.write_text((ROOT / mutant.file).read_text().replace(mutant.old, mutant.new))
        try:
            self._run(["cmake", "--build", str(self.build), "--target", *targets])
        except subprocess.CalledProcessError:
            return False
        finally:
            if mutant and path:
                shutil.copy(ROOT / mutant.file, path)
        return True

    def module(self) -> Path:
        """Return the built module."""
        return next(self.build.glob("_native*.so"))

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        subprocess.run(
            command, check=True, env=environment, stdout=subprocess.DEVNULL, cwd=ROOT, timeout=_BUILD_TIMEOUT_S
        )


class Runner:
    """Runs the tests of mutants."""

    def __init__(self) -> None:
        self._overlay = Overlay()
        self._build: NativeBuild | None = None
        self._host = subprocess.Popen(
            [sys.executable, "-c", _HOST],
            cwd=ROOT,
            env=self._overlay.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(self, mutant: Mutant) -> str:
        """Return "noticed", "timeout", "unnoticed" or "invalid"."""
        if not mutant.is_native:
            original = self._overlay.text_of(mutant)
            if original.count(mutant.old) != 1:
                return "invalid"
            self._overlay.put(mutant)
            try:
                return self._test(mutant.tests)
            finally:
                self._overlay.undo(mutant, original)
        self._build = self._build or NativeBuild()
        has_cpp = any(each.startswith("cpp:") for each in mutant.tests)
        has_python = any(not each.startswith("cpp:") for each in mutant.tests)
        if not self._build.make(mutant, ["engine_tests"] * has_cpp + ["_native"] * has_python):
            return "invalid"
        if has_python:
            self._overlay.use_native(self._build.module())
        try:
            return self._test(mutant.tests)
        finally:
            self._overlay.use_native(None)

    def passes(self, tests: tuple[str, ...]) -> bool:
        """Return whether tests pass without a mutant."""
        return self._test(tuple(each for each in tests if not each.startswith("cpp:"))) == "unnoticed"

    def _test(self, tests: tuple[str, ...]) -> str:
        files = [each for each in tests if not each.startswith("cpp:")]
        commands = [
            [str(NATIVE_TESTS), "--gtest_brief=1", f"--gtest_filter={each.removeprefix('cpp:')}"]
            for each in tests
            if each.startswith("cpp:")
        ]
        if files:
            options = ["-q", "-x", "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}"]
            commands.append(["pytest", *options, *files])
        for command in commands:
            is_pytest = command[0] == "pytest"
            status = self._run_pytest(command[1:]) if is_pytest else self._wait(command)
            if status is None:
                return "timeout"
            if status in (4, 5) and is_pytest:
                return "invalid"  # pytest found no test
            if status != 0:
                return "noticed"
        return "unnoticed"

    def _run_pytest(self, arguments: list[str]) -> int | None:
        """Run tests in a child of the host; return the status, None after the timeout."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.write(json.dumps(arguments) + "\n")
        self._host.stdin.flush()
        pid = int(self._host.stdout.readline())
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            os.killpg(pid, signal.SIGKILL)

        timer = threading.Timer(TIMEOUT_S, stop)
        timer.start()
        try:
            status = int(self._host.stdout.readline())
        finally:
            timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # processes that the tests left
        return None if is_late.is_set() else status

    def _wait(self, command: list[str]) -> int | None:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._overlay.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


NATIVE_TESTS = SCRATCH / "cpp-build" / "engine_tests"


def main() -> None:
    """Run the chosen mutants; exit with 1 if fewer than 90 % are noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression for file, old or new text")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants to choose at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="only check the list")
    parser.add_argument("--baseline", action="store_true", help="run the tests without mutants first")
    parser.add_argument("--resume", action="store_true", help="skip mutants that the report holds")
    arguments = parser.parse_args()
    mutants = read_mutants()
    stale = {each: found for each in mutants if (found := problems_of([each]))}
    for found in stale.values():
        print(f"stale: {found[0]}")
    mutants = [each for each in mutants if each not in stale]
    print(f"{len(mutants)} mutants, {sum(each.is_native for each in mutants)} of native code, {len(stale)} stale")
    if len(mutants) < FEWEST:
        sys.exit(f"{len(mutants)} mutants fit the code, expected {FEWEST}; adapt {LIST.relative_to(ROOT)}")
    if arguments.check:
        return
    chosen = [each for each in mutants if re.search(arguments.only, f"{each.file}\n{each.old}\n{each.new}")]
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    # Cheap ones first: a run that is stopped has judged most of them.
    chosen.sort(key=lambda each: (each.is_native, sum("integration" in test for test in each.tests)))
    SCRATCH.mkdir(parents=True, exist_ok=True)
    report = SCRATCH / "report.jsonl"
    if not arguments.resume:
        report.unlink(missing_ok=True)
    results = {}
    if report.exists():
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        results = {(line["file"], line["old"], line["new"]): line["result"] for line in lines}
    runner = Runner()
    if not runner.passes((_SMOKE,)):
        sys.exit(f"{_SMOKE} fails without a mutant; every mutant would count as noticed, repair the runner first")
    if arguments.baseline:
        for tests in sorted({each.tests for each in chosen}):
            if not runner.passes(tests):
                sys.exit(f"{', '.join(tests)} fail without a mutant; repair them first")
    scores = []
    for number, mutant in enumerate(chosen, 1):
        key = mutant.file, mutant.old, mutant.new
        started_s = time.monotonic()
        result = results.get(key) or runner.judge(mutant)
        scores.append(result)
        print(f"{number}/{len(chosen)} {result} {time.monotonic() - started_s:.0f}s {mutant.title}", flush=True)
        if key not in results:
            line = {"file": mutant.file, "old": mutant.old, "new": mutant.new, "result": result}
            with report.open("a") as file:
                file.write(json.dumps(line) + "\n")
    noticed = sum(each in ("noticed", "timeout") for each in scores)
    print(f"noticed {noticed} of {len(scores)} ({100 * noticed / max(1, len(scores)):.1f} %)")
    sys.exit(0 if noticed >= 0.9 * len(scores) else 1)


if __name__ == "__main__":
    main()
