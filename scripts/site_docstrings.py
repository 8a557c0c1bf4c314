"""Extension of Griffe: docstrings become Markdown, so that the site shows their examples as code.

Docstrings of this repository are plain text with three marks of reStructuredText: doctests, roles such as
``:class:`Table```, and ``::`` before indented text.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`~?([^`]+)`")
_LITERAL = re.compile(r"^( *)(.*?)::[ ]*\n(?=\s*\n\1 +\S)", re.MULTILINE)


def to_markdown(docstring: str) -> str:
    """Return the Markdown of a docstring."""
    text = _ROLE.sub(r"`\1`", docstring)
    text = _LITERAL.sub(lambda match: f"{match[1]}{match[2]}:\n" if match[2] else "\n", text)
    return _DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites the docstring of every object that Griffe loads."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of ``obj``."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
