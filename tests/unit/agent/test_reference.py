"""The reference page names the fields, variables and records that exist."""

from __future__ import annotations

import re
from pathlib import Path

from monolith.agent import environment, records
from monolith.agent.config import AgentConfig
from monolith.agent.settings import SERVER_FIELDS
from monolith.core.config_sections import flat_fields

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "agent.md").read_text()
# Read and ignored, or of the original's remote procedure calls.
UNDOCUMENTED = {"preload_jemalloc", "proxy_port", "rough_sort_resource_constrained", "aio_thread_num"}


def test_every_field_of_the_agent_is_on_the_page() -> None:
    fields = set(flat_fields(AgentConfig)) - set(SERVER_FIELDS) - {"environment", "places"} - UNDOCUMENTED
    named = {name for name in fields if not re.search(r"_(http|archon)(_port)?$", name)}
    missing = {name for name in named if f"`{name}`" not in PAGE and not name.startswith("fetch_ps_")}
    assert missing == set()


def test_every_variable_and_record_on_the_page_exists() -> None:
    section = PAGE.partition("| variable |")[2].partition("## Nodes")[0]
    known = {*environment._VARIABLES, *environment._SECRETS}
    assert set(re.findall(r"`([A-Z_]{4,})`", section)) <= known
    for name in re.findall(r"\| `([A-Z]\w+)` \|$", PAGE, re.MULTILINE):
        assert issubclass(getattr(records, name), records.Record)
