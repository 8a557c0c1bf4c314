"""Checks the Markdown of the repository: each relative link leads to a file, each anchor to a heading.

Opens no network connection; links to other hosts are not followed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of ``page`` make."""
    titles = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def problems(page: Path) -> list[str]:
    """Return one line for each link of ``page`` that leads nowhere."""
    found = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{page.relative_to(ROOT)}: {link} does not exist")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{page.relative_to(ROOT)}: {link} names no heading of {target.name}")
    return found


def main() -> int:
    """Check every page and return the exit status."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    found = [problem for page in pages for problem in problems(page)]
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"{len(pages)} pages, {len(found)} broken links\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
