"""Every core of the joiner follows the same rules: vectors, and random streams in all admissible orders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.stream import (
    END_OF_TIME,
    INVALID,
    Action,
    Event,
    Impression,
    JoinCore,
    JoinSettings,
    KeyRules,
    KeyState,
    NativeJoiner,
    ReferenceJoiner,
    Row,
    Watermark,
)

CORES: dict[str, Callable[[JoinSettings], JoinCore]] = {"reference": ReferenceJoiner, "native": NativeJoiner}
VECTORS = Path(__file__).with_name("join_vectors.txt")
SECOND = 1000
OPTIONS = {"late": str, "mode": str, "maxc": int, "maxo": int, "r": float, "tasks": int}


class Vector(NamedTuple):
    name: str
    settings: JoinSettings
    events: list[Event]
    rows: list[str]
    counters: dict[str, int]


def make_settings(**options: object) -> JoinSettings:
    """Return the settings of the vectors, with the options of one vector."""
    tasks = tuple(frozenset({code}) for code in range(1, int(str(options.pop("tasks", 1))) + 1))
    names = {"maxc": "max_codes", "maxo": "max_orphans", "r": "sample_rate"}
    chosen = {
        "window_ms": 10 * SECOND,
        "horizon_ms": 20 * SECOND,
        "orphan_hold_ms": 10 * SECOND,
        "skew_ms": SECOND,
    } | {names.get(name, name): value for name, value in options.items()}
    return JoinSettings(tasks=tasks, **chosen)  # type: ignore[arg-type]


def parse_event(text: str) -> Event:
    kind, time, *rest = text.split()
    time_ms = int(time) * SECOND
    if kind == "W":
        return Watermark(time_ms)
    key, item, *number = rest
    if kind == "A":
        return Action(time_ms, key.encode(), int(item), int(number[0]))
    return Impression(time_ms, key.encode(), int(item), f"{key}/{item}@{time}".encode(), int((number or ["0"])[0]))


def read_vectors() -> list[Vector]:
    lines = [line for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    vectors = []
    for head, result in zip(lines[::2], lines[1::2], strict=True):
        match = re.fullmatch(r"(J\d+) (.+?): (.+)", head)
        assert match is not None, head
        options = dict(pair.split("=") for pair in " ".join(re.findall(r"\{(.*?)\}", match[2])).split())
        rows, _, counts = result.strip().removeprefix("-> ").partition("#")
        vectors.append(
            Vector(
                name=match[1],
                settings=make_settings(**{name: OPTIONS[name](value) for name, value in options.items()}),
                events=[parse_event(each) for each in match[3].split(";")],
                rows=[] if rows.strip() == "nothing" else [row.strip() for row in rows.split("|")],
                counters={name: int(count) for name, count in (pair.split("=") for pair in counts.split())},
            )
        )
    return vectors


def show(row: Row) -> str:
    labels = ",".join("x" if label == INVALID else f"{label:g}" for label in row.labels)
    actions, pre_actions = (",".join(map(str, codes)) or "-" for codes in (row.actions, row.pre_actions))
    text = f"{row.key.decode()}/{row.item} y={labels} a={actions} p={pre_actions} e={row.emission}"
    text += "" if row.weight == 1 else f" w={row.weight:g}"
    return text + ("" if row.sample_rate == 1 else f" r={row.sample_rate:g}")


def counts(core: JoinCore) -> dict[str, int]:
    return {name: count for name, count in core.counters.items() if count}


def per_task(rows: Iterable[Row]) -> Counter[tuple[bytes, int, int, float]]:
    return Counter(
        (row.key, row.item, task, label) for row in rows for task, label in enumerate(row.labels) if label != INVALID
    )


@pytest.fixture(params=sorted(CORES))
def make_core(request: pytest.FixtureRequest) -> Callable[[JoinSettings], JoinCore]:
    return CORES[request.param]


# --- vectors ----------------------------------------------------------------------------------------------------------


def test_the_file_holds_all_vectors() -> None:
    assert [vector.name for vector in read_vectors()] == [f"J{number}" for number in range(1, 61)]


@pytest.mark.parametrize("vector", read_vectors(), ids=lambda vector: vector.name)
def test_a_core_gives_the_rows_and_counters_of_a_vector(
    make_core: Callable[[JoinSettings], JoinCore], vector: Vector
) -> None:
    core = make_core(vector.settings)
    rows = core.apply(vector.events)
    assert [show(row) for row in rows] == vector.rows
    assert counts(core) == vector.counters


@pytest.mark.parametrize("vector", read_vectors(), ids=lambda vector: vector.name)
def test_single_calls_equal_a_batch(make_core: Callable[[JoinSettings], JoinCore], vector: Vector) -> None:
    core = make_core(vector.settings)
    rows = []
    for event in vector.events:
        if isinstance(event, Impression):
            rows += core.on_impression(event)
        elif isinstance(event, Action):
            rows += core.on_action(event)
        else:
            rows += core.on_watermark(event.time_ms)
    assert [show(row) for row in rows] == vector.rows


@pytest.mark.parametrize("vector", read_vectors(), ids=lambda vector: vector.name)
def test_steps_of_single_keys_give_the_same_rows_per_key(vector: Vector) -> None:
    rules, watermark = KeyRules(vector.settings), None
    keys = sorted({event.key for event in vector.events if not isinstance(event, Watermark)})
    states: dict[bytes, KeyState | None] = dict.fromkeys(keys)
    rows: dict[bytes, list[str]] = {key: [] for key in keys}
    for event in vector.events:
        for key in keys if isinstance(event, Watermark) else [event.key]:
            states[key], emitted = rules.step(states[key], event, watermark)
            rows[key] += map(show, emitted)
        if isinstance(event, Watermark):
            watermark = max(event.time_ms, watermark or event.time_ms)
    assert {key: [row for row in vector.rows if row.startswith(f"{key.decode()}/")] for key in keys} == rows


def test_the_end_of_time_empties_a_core(make_core: Callable[[JoinSettings], JoinCore]) -> None:
    core = make_core(make_settings(late="reemit"))
    core.apply([Impression(0, b"k", 7), Action(99 * SECOND, b"m", 7, 1)])
    assert (core.open_impressions, core.held_actions) == (1, 1)
    assert [show(row) for row in core.on_watermark(END_OF_TIME)] == ["k/7 y=0 a=- p=- e=0"]
    assert (core.open_impressions, core.held_actions, counts(core)) == (0, 0, {"orphan": 1})
    assert core.watermark_ms == END_OF_TIME


def test_a_row_carries_the_features_of_the_earliest_copy(make_core: Callable[[JoinSettings], JoinCore]) -> None:
    core = make_core(make_settings())
    core.apply(
        [Impression(4, b"k", 7, b"later"), Impression(0, b"k", 7, b"tie", 9), Impression(0, b"k", 7, b"first", 3)]
    )
    assert [row.impression.payload for row in core.on_watermark(END_OF_TIME)] == [b"first"]


def test_an_earlier_copy_judges_actions_again(make_core: Callable[[JoinSettings], JoinCore]) -> None:
    events = [parse_event(each) for each in ("I 5 k 7", "A 3 k 7 9", "A 12 k 7 1", "I 0 k 7")]
    core = make_core(make_settings())
    core.apply(events)
    assert [show(row) for row in core.on_watermark(END_OF_TIME)] == ["k/7 y=0 a=9 p=- e=0"]
    assert counts(core) == {"dup_impression": 1, "late_dropped": 1}


@pytest.mark.parametrize("times", [(12, 6), (6, 12)])
def test_the_earliest_time_of_a_code_counts_for_an_earlier_copy(
    make_core: Callable[[JoinSettings], JoinCore], times: tuple[int, int]
) -> None:
    core = make_core(make_settings())
    core.apply(parse_event(each) for each in ("I 5 k 7", *(f"A {time} k 7 1" for time in times), "I 0 k 7"))
    assert [show(row) for row in core.on_watermark(END_OF_TIME)] == ["k/7 y=1 a=1 p=- e=0"]


@pytest.mark.parametrize(
    ("options", "causes"),
    [({"mode": "fast"}, [0, 3]), ({}, [10]), ({"late": "reemit"}, [10, 12])],
    ids=["fast", "standard", "late"],
)
def test_a_row_names_the_time_of_the_event_that_makes_it_possible(
    make_core: Callable[[JoinSettings], JoinCore], options: dict[str, str], causes: list[int]
) -> None:
    core = make_core(make_settings(**options))
    action_s = 12 if options.get("late") else 3
    events: list[Event] = [Impression(0, b"k", 7), Action(action_s * SECOND, b"k", 7, 1), Watermark(10 * SECOND)]
    assert [row.cause_time_ms for row in join(core, events)] == [cause * SECOND for cause in causes]


def test_an_undo_row_has_the_weight_of_the_row_it_undoes(make_core: Callable[[JoinSettings], JoinCore]) -> None:
    core = make_core(make_settings(late="correct", tasks=2, r=0.5))
    rows = core.apply([parse_event(each) for each in ("I 0 k 3", "W 10", "A 12 k 3 1", "A 13 k 3 2")])
    assert [show(row) for row in rows] == [
        "k/3 y=0,0 a=- p=- e=0 w=2",
        "k/3 y=0,x a=- p=- e=1 w=-2",
        "k/3 y=1,x a=1 p=- e=1",
        "k/3 y=x,0 a=1 p=1 e=2 w=-2",
        "k/3 y=x,1 a=1,2 p=1 e=2",
    ]


# --- random streams ---------------------------------------------------------------------------------------------------

IDENTITIES = st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 2))
CODES = st.sampled_from([1, 2, 9])
SEED = st.randoms(use_true_random=False)
LATE = st.sampled_from(["drop", "reemit", "correct"])


@st.composite
def streams(draw: st.DrawFn, *, copies: bool = True) -> list[Event]:
    """Draw impressions and actions of a few identities, with times around the bounds of a window."""
    events: list[Event] = []
    for key, item in draw(st.lists(IDENTITIES, unique=True, max_size=3)):
        times = draw(st.lists(st.integers(0, 6), min_size=1, max_size=2 if copies else 1))
        events += [
            Impression(time * SECOND, key, item, f"{time}/{number}".encode(), number)
            for number, time in enumerate(times)
        ]
    for key, item in draw(st.lists(IDENTITIES, max_size=8)):
        events.append(Action(draw(st.integers(0, 18)) * SECOND, key, item, draw(CODES)))
    return events


def join(core: JoinCore, events: Iterable[Event], *watermarks: int) -> list[Row]:
    rows = core.apply(events)
    for watermark in (*watermarks, END_OF_TIME):
        rows += core.on_watermark(watermark)
    return rows


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams(), random=SEED, late=LATE, tasks=st.integers(1, 2), rate=st.sampled_from([1.0, 0.5]))
def test_the_order_of_events_before_a_watermark_does_not_change_the_rows(
    name: str, events: list[Event], random: Random, late: str, tasks: int, rate: float
) -> None:
    chosen = make_settings(late=late, tasks=tasks, r=rate)
    shuffled = list(events)
    random.shuffle(shuffled)
    assert join(CORES[name](chosen), events) == join(CORES[name](chosen), shuffled)


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams(copies=False), random=SEED, late=LATE, data=st.data())
def test_an_admissible_order_gives_the_same_rows(
    name: str, events: list[Event], random: Random, late: str, data: st.DataObject
) -> None:
    chosen = make_settings(late=late)
    closes = {
        (event.key, event.item): event.time_ms + chosen.window_ms for event in events if isinstance(event, Impression)
    }
    shuffled = list(events)
    random.shuffle(shuffled)
    core, rows, watermark = CORES[name](chosen), [], -1
    for place, event in enumerate(shuffled):
        coming = {(each.key, each.item) for each in shuffled[place:] if isinstance(each, Impression)}
        bounds = [
            min(closes.get((each.key, each.item), END_OF_TIME), each.time_ms + chosen.orphan_hold) - 1
            for number, each in enumerate(shuffled)
            # Events to come, and actions that wait for an impression to come: no hold may end before it.
            if not isinstance(each, Watermark) and (number >= place or (each.key, each.item) in coming)
        ]
        watermark = max(watermark, data.draw(st.integers(-1, max(-1, min(bounds)))))
        rows += core.on_watermark(watermark)
        rows += core.apply([event])
    rows += core.on_watermark(END_OF_TIME)
    assert rows == join(CORES[name](chosen), events)


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams(), random=SEED, late=LATE, steps=st.lists(st.integers(0, 40), max_size=6))
def test_repeated_events_and_split_watermarks_change_no_row(
    name: str, events: list[Event], random: Random, late: str, steps: list[int]
) -> None:
    chosen = make_settings(late=late)
    repeated = [event for event in events for _ in range(random.randint(1, 3))]
    watermarks = sorted(step * SECOND for step in steps)
    rows = join(CORES[name](chosen), events)
    assert join(CORES[name](chosen), repeated, *watermarks) == rows
    core = CORES[name](chosen)
    again = [*join(core, events, *watermarks), *core.apply(events)]
    assert again == rows


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams(copies=False), random=SEED, late=st.sampled_from(["drop", "reemit"]), tasks=st.integers(1, 2))
def test_fast_mode_gives_each_task_the_same_labels_in_every_order(
    name: str, events: list[Event], random: Random, late: str, tasks: int
) -> None:
    chosen = make_settings(mode="fast", late=late, tasks=tasks)
    shuffled = list(events)
    random.shuffle(shuffled)
    rows = join(CORES[name](chosen), shuffled)
    assert per_task(rows) == per_task(join(CORES[name](chosen), events))
    first = {(row.key, row.item): row for row in reversed(rows)}
    assert all(row.emission == 0 and not any(row.labels) for row in first.values())
    assert max(per_task(rows).values(), default=1) == 1


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams(), mode=st.sampled_from(["standard", "fast"]))
def test_a_sampled_stream_is_a_subset_of_the_whole(name: str, events: list[Event], mode: str) -> None:
    whole = join(CORES[name](make_settings(mode=mode)), events)
    sampled = join(CORES[name](make_settings(mode=mode, r=0.5)), events)
    labels = [(row.key, row.item, row.emission, row.labels, row.actions) for row in whole]
    kept = [(row.key, row.item, row.emission, row.labels, row.actions) for row in sampled]
    assert [row for row in labels if row in kept] == kept
    assert [
        row
        for row in whole
        if any(row.labels) and (row.key, row.item, row.emission, row.labels, row.actions) not in kept
    ] == []
    assert {row.sample_rate for row in sampled} <= {0.5}


@pytest.mark.parametrize("name", sorted(CORES))
@given(events=streams())
def test_keys_of_another_name_and_the_same_order_give_the_same_rows(name: str, events: list[Event]) -> None:
    names = {b"a": b"k-1", b"b": b"k-2"}
    renamed = [replace(event, key=names[event.key]) for event in events if not isinstance(event, Watermark)]
    shown = [show(row) for row in join(CORES[name](make_settings()), renamed)]
    expected = [show(row) for row in join(CORES[name](make_settings()), events)]
    assert shown == [names[row[:1].encode()].decode() + row[1:] for row in expected]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "fast", "late": "correct"}, "late is 'correct' in fast mode"),
        ({"sampling": "logit", "tasks": ({1}, {2})}, "sampling is 'logit' for 2 tasks"),
        ({"sample_rate": 0}, "sample_rate is 0"),
        ({"sample_rate": 1.5}, "sample_rate is 1.5"),
        ({"window_ms": 0}, "window_ms is 0"),
        ({"skew_ms": -1}, "skew_ms is -1"),
        ({"max_codes": 2.5}, "max_codes is 2.5"),
        ({"late": "later"}, "late is 'later'"),
        ({"tasks": ()}, "tasks is empty"),
        ({"tasks": ({-1},)}, r"tasks\[0\] is \[-1\]"),
    ],
)
def test_wrong_settings_raise(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JoinSettings(**options)  # type: ignore[arg-type]
