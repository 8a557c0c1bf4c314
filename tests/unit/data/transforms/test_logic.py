from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.data.transforms import (
    AddLabel,
    Compose,
    FilterByAction,
    FilterByLabel,
    InBatchNegatives,
    InstanceReweight,
    LogicalOr,
    NegativeGen,
)


def has(action: int) -> FilterByAction:
    return FilterByAction(has_actions=[action])


def test_either_side_keeps_a_row_once(bench: Any, make_example: Any) -> None:
    rows = [make_example(actions=actions, uid=i) for i, actions in enumerate([[1], [2], [1, 2], [3], []])]
    kept = bench.run(LogicalOr(has(1), has(2)), rows)
    assert [row.line_id.uid for row in kept] == [0, 1, 2]


def test_logic_nests(bench: Any, make_example: Any) -> None:
    rows = [make_example(actions=actions, uid=i) for i, actions in enumerate([[1, 2], [1], [3], [2, 3], [4]])]
    step = LogicalOr(Compose([has(1), has(2)]), LogicalOr(has(4), Compose([has(3), has(2)])))
    assert [row.line_id.uid for row in bench.run(step, rows)] == [0, 3, 4]


def test_both_sides_edit_the_row_whichever_keeps_it(bench: Any, make_example: Any) -> None:
    (row,) = bench.run(LogicalOr(has(1), AddLabel(config="1:")), [make_example(actions=[1])])
    assert list(row.label) == [1]


def test_an_empty_compose_changes_nothing(bench: Any, make_example: Any) -> None:
    assert len(bench.run(Compose([]), [make_example(), make_example()])) == 2


def test_a_dropped_row_is_not_shown_to_the_next(bench: Any, make_example: Any) -> None:
    rows = [make_example(actions=[1], label=[0]), make_example(actions=[2], label=[0])]
    step = Compose(
        [has(2), InstanceReweight(action_priority=[1, 2], reweight="1:3:1,2:2:1"), FilterByLabel(thresholds=[0.5])]
    )
    assert [list(row.line_id.actions) for row in bench.run(step, rows)] == [[2], [2]]


def test_a_transform_that_makes_rows_cannot_be_a_side() -> None:
    reweight = InstanceReweight(action_priority=[1], reweight="1:2:1")
    for side in (reweight, Compose([reweight]), "text"):
        with pytest.raises(ConfigError, match="must look at one row at a time"):
            LogicalOr(has(1), side)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Compose has 5; give transforms"):
        Compose([5])  # type: ignore[list-item]


def test_a_sequence_has_the_state_of_its_parts(bench: Any, make_example: Any) -> None:
    pool = NegativeGen(neg_num=1, item_features=["item"], start_num=0)
    step = Compose([has(1), pool, InstanceReweight(action_priority=[1], reweight="1:1:1"), pool])
    rows = [make_example(actions=[1], label=[1], item_id=i + 1, features={"item": [i]}) for i in range(20)]
    operation = step.build(bench.context)
    assert operation.has_state
    assert len(operation.pools) == 2
    assert operation.state() != b""
    operation.run(bench.rows(rows[:10]))
    mark, state = operation.mark(), operation.state()
    operation.run(bench.rows(rows[10:]))
    assert operation.state() != state
    assert operation.state_at(mark) == state
    operation.restore(state)
    assert operation.state() == state
    assert [len(each) for each in operation.pools] == [10, 10]


def test_a_state_of_other_transforms_is_refused(bench: Any) -> None:
    from monolith.core.errors import RecordCorrupt

    pool = NegativeGen(neg_num=1, item_features=["item"], start_num=0)
    two = Compose([pool, pool]).build(bench.context).state()
    with pytest.raises(RecordCorrupt, match="the state is of 2 transforms, there are 3"):
        Compose([pool, pool, pool]).build(bench.context).restore(two)
    with pytest.raises(RecordCorrupt, match="a transform without state"):
        has(1).build(bench.context).restore(b"abc")
    has(1).build(bench.context).restore(b"")
    assert has(1).build(bench.context).mark() is None


def test_per_batch_steps_are_known() -> None:
    in_batch = InBatchNegatives(num=1, item_features=["a"])
    assert in_batch.is_per_batch
    assert Compose([in_batch]).is_per_batch
    assert Compose([has(1), in_batch]).is_per_batch
    assert not has(1).is_per_batch
    with pytest.raises(ConfigError, match="NegativeGen beside a transform of whole batches"):
        Compose([NegativeGen(neg_num=1, item_features=["a"]), in_batch])
