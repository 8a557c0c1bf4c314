"""The commands in README.md and in the guide exist, with their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from monolith.cli import main as program

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
LEFT_OUT = re.compile(r"\.\.\.|[|&;<>(]+")
"""A word that ends a command, or stands for options that the page leaves out."""


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words after ``monolith`` of each command in the blocks of a page."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if not re.match(r"(?:[A-Z_]+=\S+ |[^'\"#]*\| *)*monolith ", line):
                continue
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            words = words[words.index("monolith") + 1 :]
            end = next((place for place, word in enumerate(words) if LEFT_OUT.fullmatch(word)), len(words))
            yield words[:end]


def parse(words: list[str]) -> None:
    """Parse a command without running it."""
    command: Any = typer.main.get_command(program.app)
    context = command.make_context("monolith", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for words in commands(page):
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{page.name}: monolith {shlex.join(words)}: {error!r}")


def test_pages_with_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 40
