"""Checks the prose of the repository against the rules of ``docs/contributing/writing.md``.

Reads docstrings, comments and message strings of Python, comments of C++, and Markdown. Each pattern below is a phrase
that hides the actor of a sentence (rule 1) or that has a standard word in the field (rule 4).

``prose_baseline.json`` holds the number of findings that each file may have. A file above its number fails the check.
A file below it asks for ``--update``, which lowers numbers and never raises the total. A renamed file takes over the
number of the file that is gone.

    scripts/check_prose.py                  check the repository
    scripts/check_prose.py --count          print the findings per pattern and per file
    scripts/check_prose.py --list FILE...   print every finding of some files
    scripts/check_prose.py --update         lower the baseline
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "cpp", "docs", "examples", "scripts", "benchmarks", "deploy", "tests")
# Generated files, and files that quote the phrases.
EXEMPT = (
    "src/monolith/_proto/",
    "src/monolith/_native.pyi",
    "docs/contributing/writing.md",
    "scripts/check_prose.py",
    "tests/unit/test_check_prose.py",
)


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A phrase to avoid.

    The expression matches only a text that contains one of ``hints``, which is quick to find out.
    """

    name: str
    hints: tuple[str, ...]
    regex: re.Pattern[str]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Text for a human reader, and the line of the file on which it begins."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A phrase to avoid, where it stands."""

    file: str
    line: int
    pattern: Pattern
    phrase: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.phrase!r}: {self.pattern.remedy} [{self.pattern.name}]"


def _pattern(name: str, regex: str, remedy: str, *, hints: tuple[str, ...] = ()) -> Pattern:
    # A blank of the expression stands for any white space, also for the end of a line.
    regex = regex.replace(" ?", r"\s*").replace(" ", r"\s+")
    return Pattern(name=name, regex=re.compile(regex, re.IGNORECASE), remedy=remedy, hints=hints or (name,))


_START = r"(?:^|[.;:,(|!?] ?|\n[ ]*- )"
_BEFORE = (
    "and|or|but|so|then|than|for|to|of|by|from|with|at|on|in|as|if|also|only|whether|not|says?|knows?|tells?|asks?|"
    "gives?|finds?|sees?|is|are|was"
)

PATTERNS = (
    _pattern("what", r"\bwhat(?:ever)?\b(?!\w*'|[^.!?]*\?)", "name the thing: the rows, the state, the files"),
    _pattern("who", rf"(?:{_START}|\b(?:{_BEFORE}) )who(?:ever|m)?\b(?![^.!?]*\?)", "name the actor"),
    _pattern(
        "one, others",
        r"(?:^|[.;:] )(?:one|others) (?:that|which|who|whose|is|are|has|have|does|do|may|can|will|needs?)\b",
        "name the actor",
        hints=("one", "others"),
    ),
    _pattern("somebody", r"\b(?:some|no|any|every)(?:body|one)\b", "name the actor", hints=("body", "one")),
    _pattern("says", r"\b(?:says?|said|saying)\b", "holds, names, contains, states", hints=("say", "said")),
    _pattern(
        "is no",
        r"(?<!there\s)\b(?:is|are|was|were|be) no "
        r"(?!longer|more|later|less|fewer|greater|larger|smaller|earlier|newer|older)\w",
        "is invalid, is not a, expected",
        hints=(" no", "\nno"),
    ),
    _pattern(
        "is none",
        r"\b(?:is|are|was|were|be) (?-i:none)\b(?! of)",
        "is invalid, does not exist, there is no",
        hints=("none",),
    ),
    _pattern("go on", r"\b(?:go|goes|going|went|gone) on\b", "continue, resume", hints=("go", "went")),
    _pattern("of its own", r"\bof (?:its|their|one's|his|our|your) own\b", "own, separate, dedicated", hints=("own",)),
    _pattern(
        "nothing knows",
        r"\bnothing (?:\w+ )?(?:knows|is known)\b|\b(?:is|are) not known (?:here|there|to)\b"
        r"|\bknows? (?:nothing|neither|no|none)\b|\brefuses? to know\b|\bknown here\b|\bnothing here\b",
        "leave it out, or name the layer that owns the concern",
        hints=("nothing", "know", "none"),
    ),
    _pattern(
        "told",
        r"\b(?:is|are|was|were|be|been|being|gets?) (?:\w+ )?told\b|\btold (?:to|of|by|so|otherwise)\b",
        "receives, logs, raises, is configured",
    ),
    _pattern("anew", r"\banew\b", "restart, rebuild, again"),
    _pattern("at once", r"\bat once\b", "immediately, or together", hints=("once",)),
    _pattern("let go", r"\b(?:let|lets|letting) (?:\w+ )?go\b", "release, close, resume", hints=("let",)),
    _pattern("stand still", r"\b(?:stand|stands|standing|stood) still\b", "pause, wait", hints=("still",)),
    _pattern(
        "take back",
        r"\b(?:take|takes|took|taken|taking) (?:(?:it|them|this) )?back\b",
        "roll back, revert, return",
        hints=("back",),
    ),
    _pattern("sign of life", r"\bsigns? of life\b", "heartbeat", hints=("life",)),
    _pattern("foreseen", r"\bfore(?:see|sees|seen|saw)\b", "preview", hints=("fore",)),
    _pattern("believed", r"\bbelieve[ds]?\b", "is corrupt", hints=("believe",)),
    _pattern("but for", r"\bbut for\b", "except", hints=("but",)),
    _pattern("learnt", r"\blearnt\b", "learned"),
    _pattern("figures", r"\bfigures?\b", "metrics, numbers", hints=("figure",)),
    _pattern("welcome", r"\bwelcomed?\b|\bstrangers?\b", "accept, foreign", hints=("welcome", "stranger")),
)

# --- passages ---------------------------------------------------------------------------------------------------------

_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<prefix>\b[rbfuRBFU]{1,2})?
     (?P<string>\"{3}(?:[^\"\\]|\\.|\"(?!\"\"))*\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}
               |\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')
    |\bdef[ ](?P<test>test_\w+)""",
    re.VERBOSE | re.DOTALL,
)
_CPP = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |R\"(?P<mark>\w*)\(.*?\)(?P=mark)\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)'""",
    re.VERBOSE | re.DOTALL,
)
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``[^`]*``|`[^`\n]*`|\{[^{}\n]*\}|\]\([^)\s]*\)|https?://\S+")
_WORDS = re.compile(r"\w+\s+\w+")


def _blank(match: re.Match[str]) -> str:
    """Return a noun in place of code, with the same number of lines."""
    return "X" + "\n" * match[0].count("\n")


def _join(passages: Iterator[tuple[int, str, bool]]) -> Iterator[Passage]:
    """Join each passage with those that continue it: comments of adjacent lines, strings side by side."""
    start, text = 0, ""
    for line, piece, is_continued in passages:
        if not is_continued:
            if text:
                yield Passage(line=start, text=text)
            start, text = line, piece
        else:
            text += "\n" * (line - start - text.count("\n")) + piece
    if text:
        yield Passage(line=start, text=text)


def python_passages(source: str, *, has_messages: bool = True) -> Iterator[Passage]:
    """Yield docstrings, comments, message strings and names of tests.

    Args:
        source: The text of a Python file.
        has_messages: Whether plain strings are prose. Those of tests are data.
    """

    def pieces() -> Iterator[tuple[int, str, bool]]:
        line, at, end, kind = 1, 0, 0, ""
        for match in _PYTHON.finditer(source):
            line, at = line + source.count("\n", at, match.start()), match.start()
            group = str(match.lastgroup)
            between = source[end : match.start()]
            is_continued = group == kind != "test" and not between.strip() and between.count("\n") <= 1
            text = _python_text(match, has_messages=has_messages, is_continued=is_continued)
            if text:
                yield line, text, is_continued
                end, kind = match.end(), group

    return _join(pieces())


def _python_text(match: re.Match[str], *, has_messages: bool, is_continued: bool) -> str:
    if match["comment"]:
        return match["comment"].lstrip("#").removeprefix(" ")
    if match["test"]:
        return match["test"].removeprefix("test_").replace("_", " ")
    text = match["string"]
    if text.startswith(('"""', "'''")):
        return text[3:-3]
    is_message = has_messages and "b" not in (match["prefix"] or "").lower()
    is_prose = is_message and (is_continued or _WORDS.search(text))
    return text[1:-1] if is_prose else ""


def cpp_passages(source: str) -> Iterator[Passage]:
    """Yield the comments of a C++ file."""

    def pieces() -> Iterator[tuple[int, str, bool]]:
        line, at, end = 1, 0, -1
        for match in _CPP.finditer(source):
            if not match["comment"]:
                continue
            line, at = line + source.count("\n", at, match.start()), match.start()
            between = source[end : match.start()] if end >= 0 else "code"
            yield (
                line,
                match["comment"].lstrip("/*").removeprefix(" "),
                not between.strip() and between.count("\n") <= 1,
            )
            end = match.end()

    return _join(pieces())


def markdown_passages(source: str) -> Iterator[Passage]:
    """Yield the text outside code blocks, and the comments inside those of Python."""
    for match in _FENCE.finditer(source):
        if match[2] == "python":
            line = 1 + source.count("\n", 0, match.start(3))
            for passage in python_passages(match[3], has_messages=False):
                yield Passage(line=line + passage.line - 1, text=passage.text)
    yield Passage(line=1, text=_FENCE.sub(_blank, source))


def passages(path: Path, source: str) -> Iterator[Passage]:
    """Yield the passages of a file, by its suffix."""
    readers: dict[str, Callable[[str], Iterator[Passage]]] = {
        ".md": markdown_passages,
        ".cc": cpp_passages,
        ".h": cpp_passages,
    }
    if path.suffix in readers:
        return readers[path.suffix](source)
    return python_passages(source, has_messages="tests" not in path.parts[:-1])


# --- findings ---------------------------------------------------------------------------------------------------------


def prose_files(root: Path) -> list[Path]:
    """Return every file whose prose is checked, sorted."""
    found = list(root.glob("*.md"))
    for folder in FOLDERS:
        for suffix in ("py", "pyi", "md", "cc", "h"):
            found += (root / folder).rglob(f"*.{suffix}")
    return sorted(path for path in found if not path.relative_to(root).as_posix().startswith(EXEMPT))


def findings(root: Path, path: Path) -> list[Finding]:
    """Return the phrases to avoid in one file, in the order of its lines."""
    file = path.relative_to(root).as_posix()
    found = []
    for passage in passages(path.relative_to(root), path.read_text()):
        text = _CODE.sub(_blank, passage.text)
        lowered = text.lower()
        for pattern in PATTERNS:
            if not any(hint in lowered for hint in pattern.hints):
                continue
            for match in pattern.regex.finditer(text):
                line = passage.line + text.count("\n", 0, match.end())
                phrase = " ".join(text[match.start() : match.end() + 30].strip(".;:,(|!?- \n").split())
                found.append(Finding(file=file, line=line, pattern=pattern, phrase=phrase))
    return sorted(found, key=lambda finding: finding.line)


# --- the baseline -----------------------------------------------------------------------------------------------------


def read_baseline(path: Path) -> dict[str, int]:
    """Return the number of findings that each file may have."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_baseline(path: Path, counts: dict[str, int]) -> None:
    """Write the numbers, one file per line."""
    path.write_text(json.dumps(dict(sorted(counts.items())), indent=0) + "\n")


def lower(baseline: dict[str, int], counts: dict[str, int], files: set[str]) -> dict[str, int]:
    """Return the new baseline.

    A file that is gone leaves its number to new files, so that a rename needs no permission.

    Raises:
        ValueError: A file of the baseline has more findings than it may have, or new files have more than the files
            that are gone.
    """
    raised = sorted(file for file, count in counts.items() if file in baseline and count > baseline[file])
    if raised:
        raise ValueError(f"{', '.join(raised)}: more findings than the baseline allows; rewrite them first")
    budget = sum(count for file, count in baseline.items() if file not in files)
    wanted = sum(count for file, count in counts.items() if file not in baseline)
    if wanted > budget:
        raise ValueError(f"new files have {wanted} findings, removed files leave {budget}; rewrite the new ones first")
    return dict(counts)


def check(found: dict[str, list[Finding]], baseline: dict[str, int]) -> tuple[list[str], list[str]]:
    """Compare with the baseline.

    Returns:
        Errors, which name every finding of a file above its number, and the files that are below it.
    """
    errors, lower_files = [], []
    for file in sorted(found.keys() | baseline.keys()):
        count, allowed = len(found.get(file, [])), baseline.get(file, 0)
        if count > allowed:
            errors += [str(each) for each in found[file]]
            errors.append(f"{file}: {count} findings, the baseline allows {allowed}; see docs/contributing/writing.md")
        elif count < allowed:
            lower_files.append(file)
    return errors, lower_files


# --- command line -----------------------------------------------------------------------------------------------------


def print_counts(found: dict[str, list[Finding]]) -> None:
    """Print the findings per pattern and per file, most first."""
    everything = [finding for each in found.values() for finding in each]
    files = {pattern.name: {each.file for each in everything if each.pattern is pattern} for pattern in PATTERNS}
    for name, count in Counter(each.pattern.name for each in everything).most_common():
        sys.stdout.write(f"{count:6} {name} in {len(files[name])} files\n")
    sys.stdout.write(f"{len(everything):6} in all\n\n")
    for file, findings_of_file in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        if findings_of_file:
            sys.stdout.write(f"{len(findings_of_file):6} {file}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the prose of the repository.")
    parser.add_argument("--count", action="store_true", help="print the findings per pattern and per file")
    parser.add_argument("--list", action="store_true", help="print every finding")
    parser.add_argument("--update", action="store_true", help="lower the baseline to the findings of today")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("files", nargs="*", type=Path, help="files or folders; everything when absent")
    chosen = parser.parse_args(arguments)
    root = chosen.root.resolve()
    limits = [path.resolve() for path in chosen.files]
    paths = [
        path
        for path in prose_files(root)
        if not limits or any(path == limit or limit in path.parents for limit in limits)
    ]
    found = {path.relative_to(root).as_posix(): findings(root, path) for path in paths}

    if chosen.count or chosen.list:
        if chosen.list:
            sys.stdout.writelines(f"{finding}\n" for each in found.values() for finding in each)
        if chosen.count:
            print_counts(found)
        return 0

    path = root / "scripts" / "prose_baseline.json"
    baseline = read_baseline(path)
    if chosen.update:
        if limits:
            parser.error("--update takes no files; it lowers the whole baseline")
        counts = {file: len(each) for file, each in found.items() if each}
        try:
            write_baseline(path, lower(baseline, counts, set(found)) if path.exists() else counts)
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write(f"{path.name}: {sum(counts.values())} findings in {len(counts)} files\n")
        return 0

    if limits:
        baseline = {file: count for file, count in baseline.items() if file in found}
    errors, lower_files = check(found, baseline)
    sys.stderr.writelines(f"{error}\n" for error in errors)
    if lower_files:
        sys.stdout.write(
            f"{len(lower_files)} files are below their baseline; run scripts/check_prose.py --update: "
            f"{', '.join(lower_files[:5])}{' ...' if len(lower_files) > 5 else ''}\n"
        )
    sys.stdout.write(f"{len(found)} files, {sum(map(len, found.values()))} findings, {len(errors)} errors\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
