"""Hostile files and nodes: parsers refuse them with a clear error and never crash."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.agent.config import read_config
from monolith.agent.export_names import saved_model_name
from monolith.agent.layout_filters import LayoutFilters
from monolith.agent.node_paths import ServicePath, parse_binding, parse_container, parse_saved_model, parse_task
from monolith.agent.records import (
    ContainerServiceInfo,
    ModelMeta,
    PublishMeta,
    Record,
    RecordInvalid,
    ReplicaMeta,
    ResourceSpec,
    SavedModel,
    SavedModelDeployConfig,
    sub_graph_order,
)
from monolith.core.errors import ConfigError, RecordCorrupt

RECORDS: list[type[Record]] = [
    ModelMeta,
    ResourceSpec,
    PublishMeta,
    ReplicaMeta,
    SavedModelDeployConfig,
    ContainerServiceInfo,
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({name for kind in RECORDS for name in kind.__dataclass_fields__})


@given(kind=st.sampled_from(RECORDS), values=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_json_is_a_record_or_invalid(kind: type[Record], values: dict[str, object]) -> None:
    try:
        record = kind.from_bytes(json.dumps(values).encode())
    except RecordInvalid:
        return
    assert kind.from_bytes(record.to_bytes()) == record


@given(kind=st.sampled_from(RECORDS), content=st.binary())
def test_any_bytes_are_a_record_or_invalid(kind: type[Record], content: bytes) -> None:
    with suppress(RecordInvalid):
        kind.from_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"stat": %s}' % (b"9" * 5000),
        b'{"stat": 9223372036854775808}',
        b"[" * 100_000,
        b'{"address": {"a": 1}}',
        b'{"task": false}',
    ],
)
def test_numbers_and_nesting_without_bound_are_invalid(content: bytes) -> None:
    with pytest.raises(RecordInvalid):
        ReplicaMeta.from_bytes(content)


@pytest.mark.parametrize("text", ["/models/\0", "\ud800"])
def test_text_that_no_path_or_message_can_hold_is_invalid(text: str) -> None:
    with pytest.raises(RecordInvalid, match=r"model_base_path is"):
        SavedModelDeployConfig.from_bytes(json.dumps({"model_base_path": text}).encode())
    for sub_models in ({"ps_0": text}, {text: "/models/ps_0/1"}):
        with pytest.raises(RecordInvalid, match=r"sub_models is"):
            PublishMeta.from_bytes(json.dumps({"sub_models": sub_models}).encode())


def test_numbers_that_are_not_finite_are_invalid() -> None:
    with pytest.raises(RecordInvalid, match=r"cpu is nan"):
        ResourceSpec.from_bytes(b'{"cpu": NaN}')


@given(st.text())
def test_any_name_is_parsed_or_not(name: str) -> None:
    ServicePath.parse(name)
    parse_task(name)
    parse_binding(name)
    parse_container(name)
    parse_saved_model(name)
    sub_graph_order(SavedModel("m", name))


def test_names_with_endless_numbers_are_harmless(caplog: pytest.LogCaptureFixture) -> None:
    name = "ps_" + "9" * 5000
    assert parse_task("ps:" + "9" * 5000) is None
    assert sub_graph_order(SavedModel("m", name))[2] == -1
    assert LayoutFilters(["ps_{i}; i > 0"]).select([name, "ps_1"]) == ["ps_1"]
    assert "sub-graph rejected" in caplog.text


@pytest.mark.parametrize("name", ["..:ps_0", "m:..", "m:.", ":ps_0", "m:", "m", "a\nb:ps_0"])
def test_layout_names_that_break_paths_are_refused(name: str) -> None:
    assert parse_saved_model(name) is None


@given(st.binary())
def test_any_bytes_are_a_saved_model_or_corrupt(content: bytes) -> None:
    with suppress(RecordCorrupt):
        saved_model_name(content, "x")


@given(
    st.lists(
        st.text(max_size=30)
        | st.sampled_from(["num_ps", "include \0x", "include " + "x" * 5000, "bzid b", "=", "#", "layout_filters {i}"])
    )
)
def test_any_file_is_a_configuration_or_refused(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.conf"
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        with suppress(ConfigError):
            read_config(path, {}, chooses_ports=False)
