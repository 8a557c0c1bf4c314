from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from monolith.core.errors import ConfigError
from monolith.core.logs import setup_logging


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("monolith")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_a_line_has_utc_time_level_name_message_and_the_context_as_tail() -> None:
    stream = io.StringIO()
    setup_logging("INFO", context={"role": "ps", "index": 3, "zone": "a b"}, stream=stream)
    logging.getLogger("monolith.ps.server").info("shard joined shard=%d", 7)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO monolith\.ps\.server shard joined shard=7 "
        r"role=ps index=3 zone='a b'\n",
        stream.getvalue(),
    )


def test_our_own_level_is_as_asked_and_other_libraries_only_warn() -> None:
    stream = io.StringIO()
    setup_logging("debug", stream=stream)
    logging.getLogger("monolith.x").debug("ours")
    logging.getLogger("other").info("theirs")
    logging.getLogger("other").warning("careful")
    assert [line.split(" ", 3)[-1] for line in stream.getvalue().splitlines()] == ["ours", "careful"]


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(stream=first)
    setup_logging(stream=second)
    logging.getLogger("monolith").warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_a_traceback_follows_the_line() -> None:
    stream = io.StringIO()
    setup_logging(context={"role": "ps"}, stream=stream)
    try:
        raise OSError("disk")
    except OSError:
        logging.getLogger("monolith").exception("sweep failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("sweep failed role=ps")
    assert rest[-1] == "OSError: disk"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="'LOUD'"):
        setup_logging("LOUD")
