"""Fails if two modules define a public class of the same name, except the twins listed below.

One word per concept: a reader who meets a class name must not have to ask which of two classes it is.

    python scripts/check_class_names.py [SOURCE_FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

# A layer and the ready-made model around it; an initializer of table rows and one of dense weights.
TWINS = frozenset({"Constant", "DIEN", "DIN", "MMoE", "RandomUniform"})


def find_duplicates(source: Path) -> dict[str, list[str]]:
    """Return `file:line` of every definition, by class name, for names with several definitions below ``source``."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        for node in ast.parse(file.read_text(), str(file)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> int:
    """Print the duplicates; return 1 if there are any."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src"
    duplicates = {name: found for name, found in find_duplicates(source).items() if name not in TWINS}
    for name, found in duplicates.items():
        print(f"class {name} is defined in {', '.join(found)}, expected one definition; rename the less public one")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
