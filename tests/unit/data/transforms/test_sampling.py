from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data.transforms import ActionWeight, Compose, InstanceReweight, NegativeSample, SpecialStrategy


def test_special_strategies_keep_drop_and_relabel(bench: Any, make_example: Any) -> None:
    step = SpecialStrategy(strategy_list=[1, 2, 3], strategy_conf="1:1:5,2:0", keep_empty_strategy=False)
    rows = [
        make_example(label=[0, 7], special_strategies=strategies, uid=i)
        for i, strategies in enumerate([[1], [2], [3], [4], [], [2, 1], [9, 3]])
    ]
    result = bench.run(step, rows)
    assert [(row.line_id.uid, list(row.label)) for row in result] == [
        (0, [5, 7]),
        (2, [0, 7]),
        (5, [5, 7]),
        (6, [0, 7]),
    ]


def test_rows_without_strategies_stay_when_asked_for(bench: Any, make_example: Any) -> None:
    assert bench.run(SpecialStrategy(strategy_list=[1]), [make_example()])
    assert not bench.run(SpecialStrategy(strategy_list=[1]), [make_example(special_strategies=[8])])


def test_the_rate_of_a_strategy_is_its_share(bench: Any, make_example: Any) -> None:
    rows = [make_example(special_strategies=[1])] * 5000
    kept = bench.run(SpecialStrategy(strategy_list="1", strategy_conf="1:0.3"), rows)
    assert len(kept) / 5000 == pytest.approx(0.3, abs=0.03)


def test_negative_sampling_repeats_for_any_chunks(make_bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[0], uid=i) for i in range(1000)]
    step = NegativeSample(drop_rate=0.5, threshold=0.5)
    whole = [row.line_id.uid for row in make_bench(seed=3).run(step, rows)]
    bench = make_bench(seed=3)
    operation = step.build(bench.context)
    pieces = []
    for begin in range(0, 1000, 130):
        lot = bench.rows(rows[begin : begin + 130])
        operation.run(lot)
        pieces += [row.line_id.uid for row in bench.examples(lot)]
    assert pieces == whole
    assert (operation.rows_in, operation.rows_out) == (1000, len(whole))


def test_rates_finer_than_a_thousandth_count(bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[0])] * 20000
    dropped = 20000 - len(bench.run(NegativeSample(drop_rate=0.0005, threshold=0.5), rows))
    assert 0 < dropped < 40


def test_two_steps_of_one_pipeline_choose_independently(bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[0])] * 4000
    half = NegativeSample(drop_rate=0.5, threshold=0.5)
    assert len(bench.run(Compose([half, half]), rows)) / 4000 == pytest.approx(0.25, abs=0.04)


def test_rows_without_the_label_stay(bench: Any, make_example: Any) -> None:
    step = NegativeSample(drop_rate=1.0, label_index=1, threshold=0.5)
    rows = [make_example(label=[0]), make_example(label=[0, float("nan")]), make_example(label=[0, 0.4])]
    assert len(bench.run(step, rows)) == 2


def test_the_sample_rate_of_every_row_can_be_corrected(bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[label], sample_rate=0.5) for label in (0, 1) for _ in range(200)]
    plain = bench.run(NegativeSample(drop_rate=0.75, threshold=0.5), rows)
    assert {row.line_id.sample_rate for row in plain} == {0.5}
    corrected = bench.run(NegativeSample(drop_rate=0.75, threshold=0.5, correct_sample_rate=True), rows)
    assert {(row.label[0], row.line_id.sample_rate) for row in corrected} == {(0, 0.125), (1, 0.125)}


# --- instance_reweight: every branch of the rule ---

PRIORITY = [1, 2, 3]
WEIGHTS = "1:5:1,2:2:-1,3:4:1,9:3:"


@pytest.mark.parametrize(
    ("pre_actions", "actions", "labels"),
    [
        ([], [], [0]),  # both empty: unchanged
        ([], [1], [1] * 5),
        ([], [9], [0] * 3),  # unlisted: its weight, no label
        ([], [8], [0]),  # unlisted, no weight
        ([], [1, 2], [1] * 5),  # only the best listed action counts
        ([], [1, 9], [1] * 15),  # and all unlisted ones
        ([2], [1], [1] * 7),  # other labels: undo and emit
        ([3], [1], [1] * 1),  # equal labels: the difference
        ([9], [1], [1] * 5),  # nothing to undo
        ([1], [2], []),  # worse than before
        ([1], [1], []),
        ([1], [], []),
        ([3, 9], [1], [-1] * 7),  # equal labels, more copies before: the sign flips
    ],
)
def test_reweight_repeats_relabels_and_undoes(
    bench: Any, make_example: Any, pre_actions: list[int], actions: list[int], labels: list[float]
) -> None:
    step = InstanceReweight(action_priority=PRIORITY, reweight=WEIGHTS)
    result = bench.run(step, [make_example(label=[0], pre_actions=pre_actions, actions=actions)])
    assert [row.label[0] for row in result] == labels


def test_reweight_may_add_weights(bench: Any, make_example: Any) -> None:
    step = InstanceReweight(action_priority=PRIORITY, reweight=WEIGHTS, method="add")
    assert len(bench.run(step, [make_example(label=[0], actions=[1, 9])])) == 8
    assert len(bench.run(step, [make_example(label=[0], actions=[8])])) == 1


def test_reweight_drops_rows_without_labels(bench: Any, make_example: Any) -> None:
    assert not bench.run(InstanceReweight(action_priority=[1], reweight="1:2:1"), [make_example(actions=[1])])


def test_copies_follow_their_row_and_have_separate_keys(bench: Any, make_example: Any) -> None:
    step = InstanceReweight(
        action_priority=[1], reweight=[ActionWeight(action=1, weight=3, label=1.0), ActionWeight(action=2, weight=2)]
    )
    rows = bench.rows([make_example(label=[0], actions=[1 + i % 2], features={"a": [i]}, uid=i) for i in range(4)])
    before = set(rows.keys().tolist())
    step.build(bench.context).run(rows)
    assert [row.line_id.uid for row in bench.examples(rows)] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [row.named_feature[0].feature.fid_v2_list.value[0] for row in bench.examples(rows)] == [
        0, 0, 0, 1, 1, 2, 2, 2, 3, 3
    ]  # fmt: skip
    keys = rows.keys().tolist()
    assert len(set(keys)) == len(keys)
    assert before <= set(keys)


def test_a_row_that_asks_for_endless_copies_is_refused(bench: Any, make_example: Any) -> None:
    step = InstanceReweight(action_priority=[1], reweight="9:10000:")
    with pytest.raises(SchemaMismatch, match=r"row 0 of the lot asks for .* copies"):
        bench.run(step, [make_example(label=[0], actions=[9] * 50)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpecialStrategy(strategy_list=[]), "strategy_list is empty"),
        (lambda: SpecialStrategy(strategy_list=[1], strategy_conf="2:1"), "names 2, which strategy_list does not have"),
        (lambda: SpecialStrategy(strategy_list=[1], strategy_conf="1:2"), "has the rate 2.0; rates are 0 to 1"),
        (lambda: SpecialStrategy(strategy_list=[1], strategy_conf="1"), "items look like a:b or a:b:c"),
        (lambda: NegativeSample(drop_rate=1.1), "NegativeSample.drop_rate is 1.1"),
        (lambda: NegativeSample(drop_rate=0.1, per_action_drop_rate="1:1"), "needs action_priority"),
        (lambda: NegativeSample(drop_rate=0.1, per_action_drop_rate={1: 2}, action_priority=[1]), "rate 2 of action 1"),
        (
            lambda: NegativeSample(
                drop_rate=0.1, per_action_drop_rate={1: 1}, action_priority=[1], correct_sample_rate=True
            ),
            "correct_sample_rate needs one drop_rate",
        ),
        (lambda: InstanceReweight(action_priority="1", reweight=""), "give at least one action:weight:label"),
        (lambda: InstanceReweight(action_priority="1", reweight="1:2:0,1:3:0"), "action 1 twice"),
        (lambda: InstanceReweight(action_priority="1", reweight="1:-2:"), "ActionWeight.weight is -2"),
        (lambda: InstanceReweight(action_priority="1", reweight="1:2:", method="max"), "use multiply or add"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
