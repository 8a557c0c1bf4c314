"""``monolith bench``: runs a benchmark of the source checkout; its JSON lines go to standard output.

The benchmarks and their peers are not part of the installed package. Each is a program ``benchmarks/bench_NAME.py``
that takes ``--case`` and ``--quick``, and may take ``--profile`` and ``--threads``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import monolith
from monolith.core.errors import ConfigError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add ``bench`` to the program."""
    app.command("bench", epilog="Example: monolith bench engine --case step_zipf_torch --quick")(bench)


def bench(
    name: Annotated[str, typer.Argument(help="Name of the benchmark, such as 'engine'.")],
    case: Annotated[list[str] | None, typer.Option(help="Run only this case; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use smaller sizes; takes up to 60 seconds.")] = False,
    profile: Annotated[Path | None, typer.Option(help="Write a trace of some steps here; only 'train' can.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of every contestant; only for 'train'.")] = None,
    json: Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON.")] = False,
) -> None:
    """Measure Monolith beside its peers.

    Prints one JSON object per result on standard output; progress goes to standard error.
    """
    arguments = [argument for each in case or [] for argument in ("--case", each)]
    if quick:
        arguments.append("--quick")
    if profile is not None:
        arguments += ["--profile", str(profile.absolute())]
    if threads is not None:
        arguments += ["--threads", str(threads)]
    raise typer.Exit(run_benchmark(find_program(name, checkout_root()), arguments))


def checkout_root() -> Path:
    """Return the root of the source checkout that this package is installed from.

    Raises:
        ConfigError: The package is not installed from a checkout in editable mode.
    """
    root = Path(monolith.__file__).resolve().parents[2]
    if not (root / "benchmarks").is_dir():
        raise ConfigError(
            f"folder '{root / 'benchmarks'}' is absent, expected a source checkout; "
            "clone the repository and run `make setup` there"
        )
    return root


def find_program(name: str, root: Path) -> Path:
    """Return the program of benchmark ``name`` under ``root``.

    Raises:
        ConfigError: The benchmark does not exist; the text lists the names.
    """
    known = {path.stem.removeprefix("bench_"): path for path in (root / "benchmarks").glob("bench_*.py")}
    if name not in known:
        raise ConfigError(f"benchmark is {name!r}, expected one of: {', '.join(sorted(known)) or '(none exist yet)'}")
    return known[name]


def run_benchmark(program: Path, arguments: list[str]) -> int:
    """Run ``program`` with this interpreter, sharing standard output and error, and return its exit status."""
    return subprocess.run([sys.executable, str(program), *arguments], check=False).returncode
