from __future__ import annotations

import inspect
import pickle

import pytest

from monolith.core import errors
from monolith.core.errors import (
    ClusterError,
    ConfigError,
    MonolithError,
    NoSuchService,
    RetriesExhausted,
    ServingError,
    ShardUnavailable,
)

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]


def test_every_class_is_public_and_drawn_in_the_tree_of_the_docstring() -> None:
    assert {cls.__name__ for cls in CLASSES} == set(errors.__all__)
    for cls in CLASSES:
        assert cls.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_descends_from_the_root(cls: type[Exception]) -> None:
    assert issubclass(cls, MonolithError)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_survives_the_way_to_another_process(cls: type[Exception]) -> None:
    copy = pickle.loads(pickle.dumps(cls("what happened")))
    assert type(copy) is cls
    assert str(copy) == "what happened"


def test_a_config_error_is_a_value_error_and_no_other_is() -> None:
    assert [cls for cls in CLASSES if issubclass(cls, ValueError)] == [ConfigError]


def test_whether_a_cluster_error_is_retryable_has_a_default_that_one_error_may_override() -> None:
    assert {cls.__name__: cls("x").retryable for cls in CLASSES if issubclass(cls, ClusterError)} == {
        "ClusterError": False,
        "NoSuchService": False,
        "AlreadyRegistered": False,
        "ConnectionFailed": True,
        "SessionLost": True,
        "ShardUnavailable": True,
        "RpcTimeout": True,
        "RetriesExhausted": False,
    }
    assert NoSuchService("starting up", retryable=True).retryable
    assert not ShardUnavailable("shard removed", retryable=False).retryable


def test_attributes_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(NoSuchService("x", retryable=True))).retryable
    assert pickle.loads(pickle.dumps(RetriesExhausted("x", attempts=3))).attempts == 3


def test_a_serving_error_names_the_party_at_fault() -> None:
    assert {cls.__name__: cls("x").at_fault for cls in CLASSES if issubclass(cls, ServingError)} == {
        "ServingError": "server",
        "InvalidRequest": "client",
        "NotPermitted": "client",
        "ModelNotFound": "client",
        "Overloaded": "server",
        "ModelNotReady": "server",
        "CutRefused": "server",
    }
