"""The ``monolith`` program: finds the subcommand, sets up logging, turns an error into one line and an exit status.

A subcommand is a module of this package with ``register(app: typer.Typer) -> None``. It is imported when the command
line names it, or for ``--help``. It imports other packages when it runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import monolith
from monolith.core.errors import MonolithError
from monolith.core.logs import setup_logging

__all__ = ["app", "main"]

_OF_MODELS = (
    "train",
    "evaluate",
    "predict",
    "control",
    "forget",
    "export",
    "serve",
    "ps",
    "launch",
    "agent",
    "dashboard",
)
_OF_FILES = ("convert", "filter", "inspect", "join", "log", "bench", "demo", "experiment", "size")
_COMMANDS = {name: f"monolith.cli.{name}" for name in (*_OF_MODELS, *_OF_FILES)}


class _LazyGroup(typer.core.TyperGroup):
    """A group that imports a subcommand when the command line names it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        part = typer.Typer()
        part.callback()(_no_options)  # with a callback, typer keeps the name of a single command
        importlib.import_module(_COMMANDS[cmd_name]).register(part)
        return typer.main.get_group(part).commands[cmd_name]


def _no_options() -> None:
    pass


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: monolith train --task deepfm --data clicks.parquet --model-dir runs/clicks",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(monolith.__version__)
        raise typer.Exit


@app.callback()
def _options(
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR; the log goes to standard error.")] = (
        "INFO"
    ),
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train recommendation models on live events and serve them seconds later."""
    setup_logging(log_level)


def main() -> None:
    """Run the command line and exit: 0 after success, 1 with one line after an error, 2 after wrong usage."""
    try:
        app(prog_name="monolith")
    except (MonolithError, OSError) as error:  # an OSError names its path
        line = " ".join(str(error).split()) or type(error).__name__
    # Outside the handler, so that the objects of the traceback's frames are released before the process ends.
    sys.stderr.write(f"error: {line}\n")
    sys.exit(1)
