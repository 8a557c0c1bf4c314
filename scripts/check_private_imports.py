"""Fails if a module imports a private module, or a private name of a module, of another package.

A module `a.b._x` may be imported from `a.b` and below, nowhere else. import-linter has no contract for this rule.
The roots `monolith._native` and `monolith._proto` are private to the distribution, hence open to all of `monolith`.

    python scripts/check_private_imports.py [SOURCE_FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def find_violations(source: Path) -> Iterator[str]:
    """Yield `file:line: import` for every private import across packages below ``source``."""
    for file in sorted(source.rglob("*.py")):
        package = file.relative_to(source).parent.parts
        for line, target in _imports(ast.parse(file.read_text(), str(file)), package):
            if not _is_allowed(target, package):
                yield f"{file}:{line}: {'.'.join(target)} is private to {_owner(target)}"


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield line and dotted target of every import, names of `from` imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            for alias in node.names:
                yield node.lineno, (*module, alias.name)


def _is_allowed(target: tuple[str, ...], package: tuple[str, ...]) -> bool:
    """Return whether every private part of ``target`` belongs to ``package`` or one of its parents."""
    if target[0] != "monolith":
        return True
    privates = [at for at, part in enumerate(target) if part.startswith("_") and not part.startswith("__")]
    return all(package[:at] == target[:at] for at in privates)


def _owner(target: tuple[str, ...]) -> str:
    at = next(at for at, part in enumerate(target) if part.startswith("_") and not part.startswith("__"))
    return ".".join(target[:at])


def main() -> int:
    """Print all violations; return the exit status."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "src"
    violations = list(find_violations(source))
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
