"""``describe_base_path``: explains why a folder has no version to serve, and names the remedy. Reads names only."""

from __future__ import annotations

import difflib
from pathlib import Path

from monolith.serving.versions.model_config import found_versions

__all__ = ["describe_base_path"]

_MANIFEST = "manifest.json"
_JOB = "job.json"
_MOST_NAMES = 5


def describe_base_path(base_path: Path) -> str:
    """Return one line about a folder without versions: its contents and the remedy.

    Limits: the folder is listed once; a folder that changes meanwhile gets the line of its former contents.
    """
    try:
        names = sorted(child.name for child in base_path.iterdir())
    except FileNotFoundError:
        return _describe_missing(base_path)
    except NotADirectoryError:
        return f"{str(base_path)!r} is a file or below one, expected a folder with one numbered folder per version"
    except OSError as error:
        return f"{str(base_path)!r} is unreadable ({error.strerror}); check its permissions"
    if not names:
        return f"{str(base_path)!r} is empty, expected one numbered folder per version; run monolith export"
    if _MANIFEST in names and base_path.name.isdigit():
        return f"{str(base_path)!r} is one version of a model; serve its parent {str(base_path.parent)!r}"
    if _MANIFEST in names and base_path.name.startswith("step-"):
        return f"{str(base_path)!r} is a checkpoint, expected an export; run monolith export"
    exports = _find_exports(base_path, names)
    is_trained = _JOB in names or any(name.startswith("step-") for name in names)
    kind = "is a model folder of a training" if is_trained else f"has no numbered folder, it has {_list(names)}"
    if exports:
        return f"{str(base_path)!r} {kind}; serve {' or '.join(repr(str(path)) for path in exports[:_MOST_NAMES])}"
    if is_trained:
        return f"{str(base_path)!r} {kind} without an export; run monolith export --model-dir {base_path}"
    return f"{str(base_path)!r} {kind}; give the folder that monolith export wrote to"


def _describe_missing(base_path: Path) -> str:
    above = next((parent for parent in base_path.absolute().parents if parent.is_dir()), Path("/"))
    missing = base_path.absolute().relative_to(above).parts[0]
    try:
        names = sorted(child.name for child in above.iterdir())
    except OSError:
        names = []
    similar = difflib.get_close_matches(missing, names, n=1)
    hint = f"did you mean {str(above / similar[0])!r}?" if similar else f"{str(above)!r} has {_list(names)}"
    return f"{str(base_path)!r} does not exist; {hint}"


def _find_exports(base_path: Path, names: list[str]) -> list[Path]:
    """Return the children that have versions, and the sub-models of a distributed export in a child."""
    children = [base_path / name for name in names if (base_path / name).is_dir()]
    direct = [child for child in children if found_versions(child)]
    return direct or [child / "entry" for child in children if found_versions(child / "entry")]


def _list(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return (shown or "no files") + (f" and {more} more" if more > 0 else "")
