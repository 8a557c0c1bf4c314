"""Measures the embedding engine beside its peers: ``monolith bench engine [--case C] [--quick]``.

Prints one JSON object per case on standard output. Cases that share tables run in one child process each, so that
their memory goes back to the machine in between. See docs/guide/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

THREADS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of one child process, and the function in ``engine`` that yields their results."""

    function: str
    cases: tuple[str, ...]
    is_default: bool = True


GROUPS: dict[str, Group] = {
    "fbgemm": Group(
        "steps.fbgemm_cases",
        ("step_zipf_fbgemm", "step_uniform_fbgemm", "lookup_zipf_fbgemm", "lookup_uniform_fbgemm"),
    ),
    "torch": Group("steps.torch_cases", ("step_zipf_torch", "step_uniform_torch")),
    "own": Group("own.own_cases", ("bytes_per_row_overhead", "line_share", "threads_2_over_1")),
    "insert": Group("inserts.insert_cases", ("insert_unordered_map",)),
    "disk": Group("disk.disk_cases", ("snapshot_disk_share", "restore_disk_share")),
    "determinism": Group("determinism.determinism_cases", ("deterministic_price",)),
    "matrix": Group("matrix.matrix_cases", ("matrix",), is_default=False),
}


def main() -> int:
    known = [case for group in GROUPS.values() for case in group.cases]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=known, help="only this case; may be given several times")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; done within 60 seconds")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)  # set for the child processes
    arguments = parser.parse_args()
    wanted = arguments.case or [case for group in GROUPS.values() if group.is_default for case in group.cases]
    if arguments.group:
        run_group(GROUPS[arguments.group], wanted, arguments.quick)
        return 0
    broken = [name for name, group in GROUPS.items() if not run_child(name, group, wanted, arguments.quick)]
    if broken:
        print(f"bench engine: broke in: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def run_child(name: str, group: Group, wanted: Sequence[str], quick: bool) -> bool:
    """Run the wanted cases of a group in a process of their own; return whether that went well."""
    cases = [case for case in group.cases if case in wanted]
    if not cases:
        return True
    command = [sys.executable, __file__, "--group", name, *(part for case in cases for part in ("--case", case))]
    if quick:
        command.append("--quick")
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    return subprocess.run(command, env=environment, check=False).returncode == 0


def run_group(group: Group, cases: Sequence[str], quick: bool) -> None:
    """Measure the cases and print their lines. Whatever a peer prints goes to standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        from engine.results import Result, write
        from engine.workload import FULL, QUICK, Sizes

        sizes = QUICK if quick else FULL
        module, function = group.function.split(".")
        measure: Callable[[Sequence[str], Sizes], Iterator[Result]] = getattr(
            importlib.import_module(f"engine.{module}"), function
        )
        for result in measure(cases, sizes):
            write(result, sizes, out)


if __name__ == "__main__":
    sys.exit(main())
