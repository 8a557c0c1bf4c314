"""Apply the mistakes of tests/mutants.toml one at a time in a scratch copy, run the mapped tests, and print the score.

    python scripts/mutants.py                        judge the mutants that have no result yet
    python scripts/mutants.py --only durable_files   those whose file or text matches; '^cpp/' selects native code
    python scripts/mutants.py --failed               judge the unnoticed and invalid ones again
    python scripts/mutants.py --again                judge all again
    python scripts/mutants.py --sample 20 --seed 3   a random choice
    python scripts/mutants.py --check                only check that the list fits the code
    python scripts/mutants.py --summary              only print the score of the stored results

A mutant is noticed when its tests fail or time out. A test that also fails without the mutant makes it invalid, so the
tests that failed run once without mutants, at the end. Results are appended to build/mutants/results.jsonl, a line per
mutant; a run that was stopped resumes there. C++ mutants are built in build/mutants/tree: only the touched objects.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
SCRATCH = ROOT / "build" / "mutants"
RESULTS = SCRATCH / "results.jsonl"
TREE = SCRATCH / "tree"
NATIVE_TESTS = TREE / "build" / "release" / "engine_tests"
TIMEOUT_S = 240
FEWEST = 100
"""Entries that must fit the code. An entry whose line has changed is stale, and skipped."""
_BUILD_TIMEOUT_S = 1800
_BATCH = 10
COMMIT = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
).stdout.strip()
# The editable install answers `import monolith` before the path is searched.
_SITE = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "monolith" not in type(finder).__module__]
"""


# Imports the libraries of all tests once, and runs pytest in a forked child per line of standard input.
_HOST = """import json, os, sys
import numpy, torch, pytest, grpc  # not hypothesis: pytest warns of plugins that were imported before
for line in sys.stdin:
    log, arguments = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(status)
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

    def __init__(self, number: int) -> None:
        self.folder = SCRATCH / f"overlay-{os.getpid()}-{number}"
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
        self._source = TREE
        self.build = TREE / "build" / "release"  # as in a clone: a compiler cache serves both
        self._source.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "pyproject.toml", self._source)
        (self._source / "CMakeLists.txt").write_text(_project())
        command = ["rsync", "-a", "--delete"] if shutil.which("rsync") else None
        if command:
            subprocess.run([*command, f"{ROOT / 'cpp'}/", f"{self._source / 'cpp'}/"], check=True, timeout=60)
        else:
            shutil.rmtree(self._source / "cpp", ignore_errors=True)
            shutil.copytree(ROOT / "cpp", self._source / "cpp")
        # Tools of the environment come before those of the machine.
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        if shutil.which("ccache"):
            self._environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
        self._run(["cmake", "-S", str(self._source), "-B", str(self.build), "-G", "Ninja", *options])

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

    def _run(self, command: list[str]) -> None:
        subprocess.run(
            command, check=True, env=self._environment, stdout=subprocess.DEVNULL, cwd=ROOT, timeout=_BUILD_TIMEOUT_S
        )


def _project() -> str:
    """Return the build file, without fuzz targets and with only the tests that mutants name."""
    patterns = [
        pattern
        for mutant in read_mutants()
        for test in mutant.tests
        if test.startswith("cpp:")
        for pattern in test.removeprefix("cpp:").split(":")
    ]
    files = []
    for path in sorted((ROOT / "cpp").glob("*/tests/**/*_test.cc")):
        suites = set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", path.read_text(), re.MULTILINE))
        if any(fnmatch.fnmatch(f"{suite}.", pattern.rstrip("*") + "*") for suite in suites for pattern in patterns):
            files.append(path.relative_to(ROOT).as_posix())
    text = (ROOT / "CMakeLists.txt").read_text().replace("add_subdirectory(cpp/fuzz)", "")
    return text.replace("\nenable_testing()", f"\nset(ENGINE_TEST_SOURCES {' '.join(files)})\nenable_testing()")


class Results:
    """The stored results and baselines. The newest line of a mutant counts. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_mutants: dict[str, str] = {}
        self._failed: dict[str, list[str]] = {}
        self._sound: set[str] = set()
        lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
        for line in map(json.loads, lines):
            self._take(line)

    def of(self, mutant: Mutant) -> str | None:
        """Return the result of a mutant; None if it was not judged with its present tests."""
        return self._of_mutants.get(_key(mutant))

    def add(self, mutant: Mutant, result: str, failed: tuple[str, ...], seconds: float) -> None:
        """Store a result, and the tests that failed."""
        line = {"mutant": asdict(mutant), "result": result, "failed": list(failed), "seconds": round(seconds, 1)}
        with self._lock, RESULTS.open("a") as file:
            file.write(json.dumps({**line, "commit": COMMIT}) + "\n")
            self._take(line)

    def add_sound(self, tests: Iterable[str]) -> None:
        """Store tests that pass without a mutant."""
        line = {"sound": sorted(tests)}
        with self._lock, RESULTS.open("a") as file:
            file.write(json.dumps({**line, "commit": COMMIT}) + "\n")
            self._take(line)

    def failed(self, mutant: Mutant) -> list[str]:
        """Return the tests that failed with a mutant and never ran without one."""
        return [each for each in self._failed.get(_key(mutant), ()) if each not in self._sound]

    def _take(self, line: dict[str, Any]) -> None:
        if "sound" in line:
            self._sound.update(line["sound"])
        else:
            key = json.dumps(line["mutant"])
            self._of_mutants[key], self._failed[key] = line["result"], line["failed"]


def _key(mutant: Mutant) -> str:
    return json.dumps(asdict(mutant))


class Runner:
    """Runs the tests of mutants, one mutant at a time."""

    def __init__(self, results: Results, number: int) -> None:
        self._results = results
        self._overlay = Overlay(number)
        self._log = self._overlay.folder / "tests.log"
        self._build: NativeBuild | None = None
        self._host = subprocess.Popen(
            [sys.executable, "-c", _HOST],
            cwd=ROOT,
            env=self._overlay.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(self, mutant: Mutant) -> tuple[str, tuple[str, ...]]:
        """Return "noticed", "timeout", "unnoticed" or "invalid", and the tests that failed or took too long."""
        return self._judge_native(mutant) if mutant.is_native else self._judge_python(mutant)

    def find_sound(self, tests: list[str]) -> Iterator[list[str]]:
        """Yield the tests that pass without a mutant, some at a time."""
        native = [each for each in tests if each.startswith("cpp:")]
        if native:
            self._build = self._build or NativeBuild()
            self._build.make(None, ["engine_tests"])
        yield [each for each in native if self._test((each,))[0] == "unnoticed"]
        files = [each for each in tests if each not in native]
        for first in range(0, len(files), _BATCH):
            batch = files[first : first + _BATCH]
            is_sound = self._test(tuple(batch))[0] == "unnoticed"
            yield batch if is_sound else [each for each in batch if self._test((each,))[0] == "unnoticed"]

    def close(self) -> None:
        """End the process that hosts the tests."""
        assert self._host.stdin is not None
        self._host.stdin.close()
        self._host.wait()
        shutil.rmtree(self._overlay.folder, ignore_errors=True)

    def _judge_python(self, mutant: Mutant) -> tuple[str, tuple[str, ...]]:
        original = self._overlay.text_of(mutant)
        if original.count(mutant.old) != 1:
            return "invalid", ()
        self._overlay.put(mutant)
        try:
            return self._test(mutant.tests)
        finally:
            self._overlay.undo(mutant, original)

    def _judge_native(self, mutant: Mutant) -> tuple[str, tuple[str, ...]]:
        self._build = self._build or NativeBuild()
        targets = _targets(mutant.tests)
        if not self._build.make(mutant, targets):
            return "invalid", ()
        if "_native" in targets:
            self._overlay.use_native(self._build.module())
        try:
            return self._test(mutant.tests)
        finally:
            self._overlay.use_native(None)

    def _test(self, tests: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return the result, and the tests that failed or took too long."""
        for each in tests:
            if each.startswith("cpp:"):
                status = self._wait(
                    [str(NATIVE_TESTS), "--gtest_brief=1", f"--gtest_filter={each.removeprefix('cpp:')}"]
                )
                if status is None:
                    return "timeout", (each,)
                if status != 0:
                    return "noticed", (each,)
        files = [each for each in tests if not each.startswith("cpp:")]
        if not files:
            return "unnoticed", ()
        options = ["-q", "-x", "-rfE", "--tb=short", "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}"]
        status = self._run_pytest([*options, *files])
        if status is None:
            return "timeout", tuple(files)
        if status == 5 or (status == 4 and "ImportError" not in self._log.read_text()):
            return "invalid", ()  # pytest found no test
        if status == 0:
            return "unnoticed", ()
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", self._log.read_text(), re.MULTILINE)
        return "noticed", (failed[0] if failed else files[0],)

    def _run_pytest(self, arguments: list[str]) -> int | None:
        """Run tests in a child of the host; return the status, None after the timeout."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        self._host.stdin.write(json.dumps([str(self._log), arguments]) + "\n")
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


def _targets(tests: tuple[str, ...]) -> list[str]:
    """Return the targets of the build that tests need."""
    has_cpp = any(each.startswith("cpp:") for each in tests)
    has_python = any(not each.startswith("cpp:") for each in tests)
    return ["engine_tests"] * has_cpp + ["_native"] * has_python


def _choose(mutants: list[Mutant], arguments: argparse.Namespace, results: Results) -> list[Mutant]:
    chosen = [each for each in mutants if re.search(arguments.only, f"{each.file}\n{each.old}\n{each.new}")]
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    if arguments.failed:
        chosen = [each for each in chosen if results.of(each) in ("unnoticed", "invalid")]
    elif not arguments.again:
        chosen = [each for each in chosen if results.of(each) is None]
    # Cheap ones first: a run that is stopped has judged most of them.
    return sorted(
        chosen,
        key=lambda each: (
            each.is_native,
            "_native" in _targets(each.tests),
            sum("integration" in test for test in each.tests),
        ),
    )


def _judge_all(mutants: list[Mutant], results: Results, jobs: int, listed: list[Mutant]) -> None:
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    native = [each for each in enumerate(mutants, 1) if each[1].is_native]
    for each in enumerate(mutants, 1):
        if not each[1].is_native:
            waiting.put(each)

    def judge(runner: Runner, number: int, mutant: Mutant) -> None:
        started_s = time.monotonic()
        result, failed = runner.judge(mutant)
        seconds = time.monotonic() - started_s
        results.add(mutant, result, failed, seconds)
        print(f"{number}/{len(mutants)} {result} {seconds:.0f}s {mutant.title}", flush=True)

    def work(runner: Runner) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                judge(runner, *waiting.get_nowait())

    runners = [Runner(results, number) for number in range(jobs)]
    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in runners[1:]]
    for thread in threads:
        thread.start()
    work(runners[0])
    for number, mutant in native:  # one build folder: one after another
        judge(runners[0], number, mutant)
    for thread in threads:
        thread.join()
    _check_failed(listed, results, runners[0])
    for runner in runners:
        runner.close()


def _check_failed(mutants: list[Mutant], results: Results, runner: Runner) -> None:
    """Run the tests that failed without mutants; a mutant whose tests fail without it is invalid."""
    tests = sorted({test for each in mutants for test in results.failed(each)})
    for sound in runner.find_sound(tests):  # stored as they come: a run that is stopped resumes here too
        results.add_sound(sound)
    for each in mutants:
        if broken := results.failed(each):
            print(f"tests fail without a mutant: {' '.join(broken)}", flush=True)
            results.add(each, "invalid", (), 0)


def _print_score(mutants: list[Mutant], results: Results) -> bool:
    """Print the score of the stored results; return whether at least 90 % of the judged mutants are noticed."""
    judged = {each: result for each in mutants if (result := results.of(each))}
    for kind, is_native in (("Python", False), ("C++", True)):
        of_kind = [result for each, result in judged.items() if each.is_native is is_native]
        count = sum(each.is_native is is_native for each in mutants)
        noticed = sum(each in ("noticed", "timeout") for each in of_kind)
        print(f"{kind}: noticed {noticed} of {len(of_kind)} judged, {count} listed")
    for each, result in judged.items():
        if result not in ("noticed", "timeout"):
            print(f"{result}: {each.title}")
    noticed = sum(each in ("noticed", "timeout") for each in judged.values())
    print(f"noticed {noticed} of {len(judged)} ({100 * noticed / max(1, len(judged)):.1f} %), commit {COMMIT}")
    return noticed >= 0.9 * len(judged)


def main() -> None:
    """Run the chosen mutants; exit with 1 if fewer than 90 % of those judged are noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression for file, old or new text")
    parser.add_argument("--failed", action="store_true", help="judge again the unnoticed and invalid ones")
    parser.add_argument("--again", action="store_true", help="judge again those that have a result")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants to choose at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants of Python code to judge at a time")
    parser.add_argument("--check", action="store_true", help="only check the list")
    parser.add_argument("--summary", action="store_true", help="only print the score of the stored results")
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
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for left in SCRATCH.glob("overlay-*-*"):  # of a run that was killed
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)
    results = Results()
    if not arguments.summary:
        _judge_all(_choose(mutants, arguments, results), results, arguments.jobs, mutants)
    sys.exit(0 if _print_score(mutants, results) else 1)


if __name__ == "__main__":
    main()
