"""Rights of callers: predict token, admin token, assignments, reloads and their folders, over both APIs."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import InvalidRequest, ModelNotReady, MonolithError, NotPermitted
from monolith.embedding import Adagrad, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.ps import Security
from monolith.serving import ModelConfig
from monolith.serving.api.access import Access
from monolith.serving.servable.tables import TableCalls
from monolith.testing.fakes.linear_model import LinearModel, example, write_version
from monolith.testing.processes.linear_server import LinearServer

TOKENS = Security(token="predict", admin_token="admin")
ROW = {"ids_id": [9], "ids_value": [[1.5]]}
CONFIG = 'model_config_list {{ config {{ name: "{}" base_path: "{}" }} }}'


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises((MonolithError, urllib.error.HTTPError)) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_the_predict_token_predicts_and_the_admin_token_also_assigns(
    transport: Any, serve: Callable[..., LinearServer]
) -> None:
    served = serve(security=TOKENS, allow_assign=False, allow_reload=False)
    with served.client(transport, security=Security(token="predict")) as client:
        before = client.score(example(user=9))["score"].tolist()
        with pytest.raises(NotPermitted, match="admin token"):
            client.predict(ROW, signature="assign")
        assert client.score(example(user=9))["score"].tolist() == before
    with served.client(transport, security=Security(token="admin")) as client:
        client.predict(ROW, signature="assign")
        assert client.score(example(user=9))["score"].tolist() != before
    with (
        served.client(transport, security=Security(token="other")) as client,
        pytest.raises(NotPermitted, match="bearer token"),
    ):
        client.score(example())


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_client_of_a_stopped_server_raises_the_same_error_over_both_apis(
    transport: Any, serve: Callable[..., LinearServer]
) -> None:
    served = serve()
    with served.client(transport) as client:
        served.server.stop()
        with pytest.raises(ModelNotReady, match=r"127\.0\.0\.1"):
            client.score(example())


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_without_tokens_assignments_are_off_unless_allowed(transport: Any, serve: Callable[..., LinearServer]) -> None:
    served = serve(allow_assign=False)
    with served.client(transport) as client:
        assert client.score(example())["score"].tolist() == [0.5]
        assert "--allow-assign" in refused(lambda: client.predict(ROW, signature="assign"))


def test_a_version_that_follows_takes_no_assignment_unless_allowed(
    serve: Callable[..., LinearServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinearModel, "is_following", True, raising=False)
    strict = serve(security=TOKENS, allow_assign=False)
    with strict.client(security=Security(token="admin")) as client:
        assert "follows a publisher" in refused(lambda: client.predict(ROW, signature="assign"))
    lenient = serve(security=TOKENS, allow_assign=True)
    with lenient.client(security=Security(token="admin")) as client:
        client.predict(ROW, signature="assign")
    with lenient.client(security=Security(token="predict")) as client:
        assert "admin token" in refused(lambda: client.predict(ROW, signature="assign"))


def test_a_reload_needs_the_admin_token_and_stays_within_the_roots(
    serve: Callable[..., LinearServer], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    served = serve(security=TOKENS, allow_reload=False)
    write_version(tmp_path / "other", 1)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_version(elsewhere / "stolen", 1)
    with served.client(security=Security(token="predict")) as client:
        assert "admin token" in refused(lambda: client.reload(CONFIG.format("other", tmp_path / "other")))
    with served.client(security=Security(token="admin")) as client:
        for path in (elsewhere / "stolen", tmp_path / ".." / elsewhere.name / "stolen"):
            assert "--model-root" in refused(lambda path=path: client.reload(CONFIG.format("m", path)))  # type: ignore[misc]
        log = (
            f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path / "m"}" logging_config {{ '
            f'log_collector_config {{ filename_prefix: "{elsewhere}/log" }} sampling_config {{ sampling_rate: 1 }} '
            "} } }"
        )
        assert "log prefix" in refused(lambda: client.reload(log))
        assert served.server.models.names() == ["m"]
        client.reload(CONFIG.format("other", tmp_path / "other"))
        assert served.server.models.names() == ["other"]


def test_rights_without_and_with_an_admin_token() -> None:
    model = ModelConfig(name="m", base_path=Path("/models/m"))
    for access, header, may_assign, may_reload in (
        (Access(roots=[Path("/models")]), "", False, False),
        (Access(allow_assign=True, allow_reload=True, roots=[Path("/models")]), "", True, True),
        (Access(admin_token="a", allow_assign=True, allow_reload=True, roots=[Path("/models")]), "", False, False),
        (Access(admin_token="a", roots=[Path("/models")]), "Bearer a", True, True),
        (Access(admin_token="a", roots=[Path("/elsewhere")]), "Bearer a", True, False),
        (Access(admin_token="a", roots=[Path("/models")]), "Bearer \u00e4", False, False),
    ):
        assert access.may_assign(header) is may_assign
        if may_reload:
            access.check_reload(header, [model])
        else:
            with pytest.raises(NotPermitted):
                access.check_reload(header, [model])


def test_values_that_are_not_finite_are_not_assigned() -> None:
    tables = MultiTable(
        [TableSpec("user", [SliceSpec(1, optimizer=Adagrad(learning_rate=0.5), compressor=Fp32())])]
    ).to_serving()
    for value in (float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="not finite"):
            TableCalls(tables).assign("user", [1], [[value]])
    assert len(tables["user"]) == 0
