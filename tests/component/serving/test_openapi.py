"""A live server matches its description: generated requests get described responses, and no failure."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from monolith.serving import ModelConfig
from monolith.serving.api.openapi import description
from monolith.testing.fakes.linear_model import write_version
from monolith.testing.processes.linear_server import LinearServer

OPERATIONS = [
    (method, path) for path, item in description()["paths"].items() for method in ("get", "post") if method in item
]
CAN_BE_WRONG = [each for each in OPERATIONS if each[0] == "post" or "{version}" in each[1]]
MODELS = [each for each in OPERATIONS if "{name}" in each[1]]
FEATURES = {
    "user": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "maxItems": 3},
    "age": {"type": "number", "minimum": -1e6, "maximum": 1e6},
}
ROW = {"type": "object", "required": ["user", "age"], "properties": FEATURES, "additionalProperties": False}
FEW = settings(max_examples=6, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server is, with version 1 of ``m``, which is ``stable``."""
    folder: Path = tmp_path_factory.mktemp("described")
    write_version(folder / "m", 1, bias=0.5)
    models = [ModelConfig(name="m", base_path=folder / "m", labels={"stable": 1})]
    made = LinearServer(folder, models, request_timeout_s=60.0)
    made.start()
    yield f"http://{made.server.rest_address}"
    made.server.stop(0.0)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    import requests

    with requests.Session() as session:
        yield session


def narrowed() -> dict[str, Any]:
    """The description, with that model in it, and its features."""
    found = copy.deepcopy(description())
    for item in found["paths"].values():
        for parameter in item.get("parameters", ()):
            parameter["schema"] = {"enum": [{"name": "m", "version": 1, "label": "stable"}[parameter["name"]]]}
        if "requestBody" in item.get("post", ()):
            schema = {"properties": {"instances": {"type": "array", "items": ROW, "minItems": 1, "maxItems": 5}}}
            schema |= {"type": "object", "required": ["instances"], "additionalProperties": False}
            item["post"]["requestBody"]["content"]["application/json"]["schema"] = schema
    return found


def cases(described: dict[str, Any], operation: tuple[str, str], are_right: bool) -> Any:
    """Requests for one operation, as its description wants them, or as it does not."""
    import schemathesis
    from schemathesis import GenerationMode

    found = schemathesis.openapi.from_dict(described)[operation[1]][operation[0].upper()]
    return found.as_strategy(generation_mode=GenerationMode.POSITIVE if are_right else GenerationMode.NEGATIVE)


def statuses(drawn: Any, session: Any, served: str, **checks: Any) -> Counter[int]:
    """Send them; every answer must be one that is described, and none a failure."""
    seen: Counter[int] = Counter()

    @FEW
    @given(drawn)
    def send(case: Any) -> None:
        answer = case.call_and_validate(base_url=served, session=session, timeout=60, **checks)
        seen[answer.status_code] += 1

    send()
    return seen


def named(operations: list[tuple[str, str]]) -> Callable[..., Any]:
    return pytest.mark.parametrize("operation", operations, ids=[f"{method} {path}" for method, path in operations])


@named(OPERATIONS)
def test_a_described_request_is_answered_as_described(operation: tuple[str, str], served: str, session: Any) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    # Which models and features there are, the description does not know.
    seen = statuses(cases(description(), operation, True), session, served, excluded_checks=[positive_data_acceptance])
    assert set(seen) <= ({200, 400, 404} if "{name}" in operation[1] else {200})


@named(CAN_BE_WRONG)
def test_a_request_against_the_description_is_refused_as_described(
    operation: tuple[str, str], served: str, session: Any
) -> None:
    assert set(statuses(cases(description(), operation, False), session, served)) <= {400, 404}


@named(MODELS)
def test_a_valid_request_for_a_model_is_answered(operation: tuple[str, str], served: str, session: Any) -> None:
    assert set(statuses(cases(narrowed(), operation, True), session, served)) == {200}


@named(OPERATIONS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_another_method_is_refused_with_the_one_to_use(
    method: str, operation: tuple[str, str], served: str, session: Any
) -> None:
    if method.lower() == operation[0]:
        return
    answer = session.request(method, served + operation[1].format(name="m", version=1, label="stable"), timeout=60)
    assert (answer.status_code, answer.headers["Allow"]) == (405, operation[0].upper())


def test_the_server_gives_this_description(served: str, session: Any) -> None:
    assert session.get(f"{served}/openapi.json", timeout=60).json() == description()
