"""The documentation site: links that leave it, and docstrings as Markdown."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import yaml

from scripts_of_repository import load_script

ROOT = Path(__file__).resolve().parents[2]


site_links = load_script("site_links")
site_docstrings = load_script("site_docstrings")
log_messages = load_script("log_messages")


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[code](../../src/monolith)", "[code](https://host/src/monolith)"),
        ("[page](../guide/data.md)", "[page](../guide/data.md)"),
        ("[above](#here)", "[above](#here)"),
        ("[web](https://example.org)", "[web](https://example.org)"),
    ],
)
def test_a_link_out_of_the_site_leads_to_the_code_host(link: str, expected: str) -> None:
    assert site_links.rewrite_links(link, "design/ps.md", "https://host") == expected


def test_a_link_out_of_the_site_is_text_without_a_code_host() -> None:
    assert site_links.rewrite_links("see [`src`](../../src/x.py).", "design/ps.md", "") == "see `src`."


def test_links_in_code_blocks_stay() -> None:
    text = "```\n[code](../../src/monolith)\n```\n"
    assert site_links.rewrite_links(text, "design/ps.md", "https://host") == text


def test_a_docstring_becomes_markdown() -> None:
    docstring = "Uses :class:`~mt.Table`.\n\n>>> 1 + 1\n2\n\nA tree::\n\n    leaf"
    expected = "Uses `mt.Table`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nA tree:\n\n    leaf"
    assert site_docstrings.to_markdown(docstring) == expected


def test_log_messages_are_listed_by_level_with_their_module() -> None:
    source = (
        "logger.info('started port=%d', 1)\nlogger.exception('call failed')\nlogger.debug('hidden')\n"
        "logger.warning(text)\nother.info('not a logger')\n"
    )
    found = sorted(log_messages.read_messages(source, "monolith.x"))
    assert log_messages.table(found).splitlines()[2:] == [
        "| error | `call failed` | `monolith.x` |",
        "| info | `started port=%d` | `monolith.x` |",
    ]


def test_the_messages_of_the_package_are_found() -> None:
    modules = {message.module.split(".")[1] for message in log_messages.collect(ROOT / "src")}
    assert {"training", "serving", "ps", "sync", "discovery"} <= modules


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(values, str)
    return [page for value in values for page in pages_of(value)]  # type: ignore[attr-defined]


class Loader(yaml.SafeLoader):
    """Reads the configuration of the site without its Python objects."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = pages_of(config["nav"])
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    expected = [page for page in pages if not page.startswith("adr/")]
    assert [page for page in expected if page not in listed] == [], "add the page to nav of mkdocs.yml"
    assert sorted(listed) == sorted(expected)


def test_every_decision_is_added_to_the_navigation() -> None:
    config = types.SimpleNamespace(nav=[{"Home": "index.md"}, {"Contributing": ["contributing/writing.md"]}])
    site_links.on_config(config)
    decisions = config.nav[1]["Contributing"][1]["Decisions"]
    assert len(decisions) == len(list((ROOT / "docs" / "adr").glob("*.md")))
