"""Hooks of MkDocs: outward links, the list of decisions, and the index of log messages.

Links that leave ``docs/`` lead to the code host, or become text where no host is configured.

Pages link to source files by relative path, which works in a checkout and on a code host. The site holds ``docs/``
only. ``DOCS_SOURCE_URL`` (for example ``https://host/owner/name/blob/main``) is the address of the repository.
"""

from __future__ import annotations

import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_LOG_MESSAGES = "<!-- log messages -->"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def rewrite_links(markdown: str, page: str, source_url: str) -> str:
    """Return the text of a page with its outward links rewritten.

    Args:
        markdown: The text.
        page: The path of the page below ``docs/``.
        source_url: The address of the repository, or empty.
    """

    def replace(match: re.Match[str]) -> str:
        title, link = match.groups()
        if re.match(r"[a-z]+:|#", link):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
        if path.startswith("docs/") and not path.endswith("/"):
            return match[0]
        return f"[{title}]({source_url.rstrip('/')}/{path})" if source_url else title

    pieces = _BLOCK.split(markdown)
    return "".join(piece if index % 2 else _LINK.sub(replace, piece) for index, piece in enumerate(pieces))


def on_config(config: Any) -> Any:
    """Add the pages of ``docs/adr`` to the navigation; MkDocs calls this function."""
    pages = sorted(path.name for path in (_ROOT / "docs" / "adr").glob("*.md"))
    for section in config.nav:
        if "Contributing" in section:
            section["Contributing"].append({"Decisions": [f"adr/{name}" for name in pages]})
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page and insert the log messages; MkDocs calls this function."""
    del files
    if _LOG_MESSAGES in markdown:
        index = runpy.run_path(str(_ROOT / "scripts" / "log_messages.py"))
        markdown = markdown.replace(_LOG_MESSAGES, index["table"](index["collect"](_ROOT / "src")))
    return rewrite_links(markdown, page.file.src_uri, config.extra.get("source_url") or "")
