from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from checkpoint_runs import USER, Net, content_of, make_checkpointer, make_state, save_run, train
from monolith.artifacts import read_manifest
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError, ManifestInvalid, SchemaMismatch
from monolith.embedding import Adagrad, SliceSpec, TableSpec
from monolith.layers import Dense
from monolith.layers.optimizers import Adamom
from monolith.layers.shampoo import Shampoo


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- damage ---


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_damage_to_any_file_is_refused_by_name_and_changes_nothing(tmp_path: Path, how: str) -> None:
    save_run(tmp_path, (1, 2))
    folder = tmp_path / "checkpoints/step-000000002"
    state = make_state(seed=3)
    train(state, 1)
    before = content_of(state)
    for path in files_of(folder):
        whole = path.read_bytes()
        if how == "flipped":
            path.write_bytes(
                whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :]
            )
        elif how == "cut":
            path.write_bytes(whole[: len(whole) // 2])
        else:
            path.unlink()
        with pytest.raises(ArtifactError) as caught:
            make_checkpointer(tmp_path).restore(state)
        assert path.name in str(caught.value), str(caught.value)
        assert "restore_ckpt='step-000000001'" in str(caught.value), str(caught.value)
        path.write_bytes(whole)
    assert state.step == 1
    assert content_of(state) == before
    assert make_checkpointer(tmp_path).restore(state) is not None


def test_the_remedy_names_the_newest_checkpoint_that_is_really_whole(tmp_path: Path) -> None:
    save_run(tmp_path, (1, 2, 3))
    for step in (2, 3):
        (tmp_path / f"checkpoints/step-00000000{step}/dense.safetensors").write_bytes(b"no")
    with pytest.raises(ManifestInvalid, match="restore_ckpt='step-000000001'"):
        make_checkpointer(tmp_path).restore(make_state())
    restored = make_checkpointer(tmp_path, restore_ckpt="step-000000001").restore(make_state())
    assert restored is not None
    assert restored.step == 1


# --- weights that changed ---


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Dense(4, activation="relu"), Dense(1))
        self.batch_norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mlp(self.batch_norm(x))
        return y


ALIASES = {"mlp": "tower", "batch_norm": "norm"}


def test_weights_that_do_not_fit_are_listed_with_the_remedy(tmp_path: Path) -> None:
    save_run(tmp_path)
    net = Net()
    net.norm = nn.BatchNorm1d(6)
    net.added = nn.Linear(1, 1)
    del net.tower[1]
    state = make_state(net=net)
    with pytest.raises(SchemaMismatch) as caught:
        make_checkpointer(tmp_path).restore(state)
    text = str(caught.value)
    assert "not in the checkpoint: added.weight, added.bias" in text
    assert "not in the model: tower.1." in text
    assert "norm.weight (checkpoint (5,), model (6,))" in text
    assert "reload_alias_map" in text
    assert "clear_nn" in text
    assert len(state.store["user"]) == 0  # type: ignore[index]


def test_renamed_weights_and_their_optimizer_state_are_found_by_alias(tmp_path: Path) -> None:
    saved = save_run(tmp_path)
    state = make_state(seed=4, net=Renamed())
    make_checkpointer(tmp_path, reload_alias_map=ALIASES).restore(state)
    assert list(content_of(state).values()) == list(content_of(saved).values())


def test_aliases_do_not_count_once_a_checkpoint_has_the_new_names(tmp_path: Path) -> None:
    save_run(tmp_path)
    state = make_state(net=Renamed())
    checkpointer = make_checkpointer(tmp_path, reload_alias_map=ALIASES)
    checkpointer.restore(state)
    train(state, 1)
    checkpointer.save(state, reason="test").wait()
    checkpointer.close()
    again = make_state(seed=5, net=Renamed())
    make_checkpointer(tmp_path, reload_alias_map=ALIASES).restore(again)
    assert content_of(again) == content_of(state)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"towr": "tower"}, "did you mean 'tower'"),
        ({"bn.weight": "norm.wieght"}, "did you mean 'norm.weight'"),
        ({"quite_another": "tower"}, "names of the model"),
    ],
)
def test_a_misspelt_alias_is_refused(tmp_path: Path, aliases: dict[str, str], message: str) -> None:
    save_run(tmp_path)
    net = Net()
    net.bn = nn.BatchNorm1d(5)
    with pytest.raises(ConfigError, match=message):
        make_checkpointer(tmp_path, reload_alias_map=aliases).restore(make_state(net=net))


# --- optimizers ---


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.Adagrad(weights, 0.1),
        lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9),
        lambda weights: Adamom(weights, 0.1),
        lambda weights: Shampoo(weights, 0.1),
    ],
)
def test_the_state_of_every_kind_of_optimizer_comes_back(tmp_path: Path, make: object) -> None:
    def state_of(seed: int) -> object:
        torch.manual_seed(seed)
        net = nn.Linear(3, 2)
        state = make_state(seed, net=net, specs=[])
        state.optimizers = {"dense": make(net.parameters())}  # type: ignore[operator]
        return state

    def step(state: object) -> None:
        (optimizer,) = state.optimizers.values()  # type: ignore[attr-defined]
        optimizer.zero_grad()
        state.model(torch.rand(4, 3)).square().sum().backward()  # type: ignore[attr-defined]
        optimizer.step()

    one, other = state_of(0), state_of(1)
    for _ in range(3):
        step(one)
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.save(one, reason="test").wait()  # type: ignore[arg-type]
    checkpointer.close()
    for _ in range(3):
        step(one)
    make_checkpointer(tmp_path).restore(other)  # type: ignore[arg-type]
    for _ in range(3):
        step(other)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):  # type: ignore[attr-defined]
        assert torch.equal(ours, theirs)


def test_a_changed_option_stays_as_configured_and_a_scheduled_one_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = make_state()
    train(state, 1)
    state.optimizers["dense"].param_groups[0]["lr"] = 0.005  # what a scheduler does
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.save(state, reason="test").wait()
    checkpointer.close()
    again = make_state()
    again.optimizers = {"dense": torch.optim.Adam(again.model.parameters(), 0.01, weight_decay=0.5)}
    make_checkpointer(tmp_path).restore(again)
    group = again.optimizers["dense"].param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.005, 0.5)
    assert "option=weight_decay" in caplog.text


def test_another_class_of_optimizer_starts_fresh(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_run(tmp_path)
    state = make_state()
    state.optimizers = {"dense": torch.optim.SGD(state.model.parameters(), 0.1)}
    with caplog.at_level(logging.WARNING):
        make_checkpointer(tmp_path).restore(state)
    assert "optimizer starts fresh" in caplog.text
    assert not state.optimizers["dense"].state


# --- tables that changed ---


def test_common_tables_come_back_new_ones_start_empty_and_removed_ones_are_reported(tmp_path: Path) -> None:
    saved = save_run(tmp_path)
    shop = TableSpec("shop", [SliceSpec(1, optimizer=Adagrad(0.1))])
    state = make_state(specs=[USER, shop])
    state.store["shop"].assign([1], [[1.0]])  # type: ignore[index]
    restored = make_checkpointer(tmp_path).restore(state)
    assert restored is not None
    assert restored.report is not None
    assert restored.report.restored == ("user",)
    assert restored.report.skipped == ("item",)
    assert restored.report.missing == ("shop",)
    assert len(state.store["user"]) == len(saved.store["user"])  # type: ignore[index]
    assert len(state.store["shop"]) == 0  # type: ignore[index]


def test_a_table_with_other_slices_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    save_run(tmp_path)
    state = make_state(seed=8, specs=[USER, TableSpec("item", [SliceSpec(9, optimizer=Adagrad(0.1))])])
    with pytest.raises(SchemaMismatch, match="item"):
        make_checkpointer(tmp_path).restore(state)
    assert len(state.store["user"]) == 0  # type: ignore[index]


# --- restore_dir and restore_ckpt ---


def restore_step(model_dir: Path, **settings: object) -> int:
    restored = make_checkpointer(model_dir, **settings).restore(make_state(seed=6))
    assert restored is not None
    return restored.step


def save_more(model_dir: Path, steps: int, **settings: object) -> int:
    """Resume, train some steps, save; return the step."""
    state = make_state(seed=6)
    checkpointer = make_checkpointer(model_dir, **settings)
    checkpointer.restore(state)
    train(state, steps)
    checkpointer.save(state, reason="test").wait()
    checkpointer.close()
    return state.step


def test_restore_ckpt_counts_once_and_until_the_run_has_a_newer_checkpoint(tmp_path: Path) -> None:
    save_run(tmp_path, (2, 4, 6))
    assert restore_step(tmp_path, restore_ckpt="step-000000002") == 2
    assert (tmp_path / "restore_ckpt").is_file()
    assert restore_step(tmp_path, restore_ckpt="step-000000002") == 2, "killed before its first save"
    assert restore_step(tmp_path) == 2, "and started again without the option"
    assert save_more(tmp_path, 1, restore_ckpt="step-000000002") == 3
    assert restore_step(tmp_path, restore_ckpt="step-000000002") == 3, "its own newest, though step 6 is higher"
    assert restore_step(tmp_path, restore_ckpt="4") == 4, "another request is another one"


def test_a_run_that_went_back_overwrites_what_it_meets(tmp_path: Path) -> None:
    save_run(tmp_path, (2, 4))
    assert save_more(tmp_path, 2, restore_ckpt="2") == 4
    assert read_manifest(tmp_path / "checkpoints/step-000000004").number == 3
    assert restore_step(tmp_path) == 4


def test_a_marker_made_by_hand_means_done(tmp_path: Path) -> None:
    save_run(tmp_path, (2, 4))
    (tmp_path / "restore_ckpt").touch()
    assert restore_step(tmp_path, restore_ckpt="2") == 4


def test_restore_ckpt_that_is_not_there_is_refused(tmp_path: Path) -> None:
    save_run(tmp_path, (2,))
    with pytest.raises(CheckpointMissing, match="step-000000002"):
        restore_step(tmp_path, restore_ckpt="step-000000009")
    with pytest.raises(ConfigError, match="restore_dir"):
        restore_step(tmp_path, restore_ckpt="/somewhere/else/step-000000002")
    assert restore_step(tmp_path, restore_ckpt=str(tmp_path / "checkpoints/step-000000002")) == 2


def test_restore_dir_starts_a_run_from_another_one_until_it_has_its_own(tmp_path: Path) -> None:
    save_run(tmp_path / "old", (2, 4))
    new = tmp_path / "new"
    assert restore_step(new, restore_dir=str(tmp_path / "old")) == 4
    assert (new / "restore_ckpt").is_file()
    assert not (new / "checkpoints").exists(), "the other run's checkpoint is used where it is"
    assert restore_step(new) == 4
    assert save_more(new, 3, restore_dir=str(tmp_path / "old")) == 7
    shutil.rmtree(tmp_path / "old")
    assert restore_step(new, restore_dir=str(tmp_path / "old")) == 7


@pytest.mark.parametrize("place", ["old", "old/checkpoints", "old/checkpoints/step-000000004"])
def test_restore_dir_may_be_a_run_its_checkpoints_or_one_of_them(tmp_path: Path, place: str) -> None:
    save_run(tmp_path / "old", (2, 4))
    assert restore_step(tmp_path / "new", restore_dir=str(tmp_path / place)) == 4


def test_restore_dir_and_restore_ckpt_go_together(tmp_path: Path) -> None:
    save_run(tmp_path / "old", (2, 4))
    for _ in range(2):
        assert restore_step(tmp_path / "new", restore_dir=tmp_path / "old", restore_ckpt="step-000000002") == 2


@pytest.mark.parametrize("steps", [2, 3])  # the run's first checkpoint has the name of an older one, or another
def test_reading_takes_the_run_once_it_has_started_from_a_named_checkpoint_of_another(
    steps: int, tmp_path: Path
) -> None:
    save_run(tmp_path / "old", (2, 4, 6))
    asked = {"restore_dir": str(tmp_path / "old"), "restore_ckpt": "4"}
    new = tmp_path / "new"

    def read_step(**settings: object) -> int:
        state = make_state(seed=6)
        state.optimizers, state.rng = {}, False
        restored = make_checkpointer(new, **settings).load(state)
        assert restored is not None
        return restored.step

    assert read_step(**asked) == 4
    assert restore_step(new, **asked) == 4
    assert read_step(**asked) == 4
    assert save_more(new, steps, **asked) == 4 + steps
    assert read_step(**asked) == 4 + steps
    assert save_more(new, 1, **asked) == 5 + steps
    assert read_step(**asked) == 5 + steps
    assert read_step(restore_ckpt=str(4 + steps)) == 4 + steps


def test_restore_dir_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="nothing"):
        restore_step(tmp_path / "new", restore_dir=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="pip install gcsfs"):
        restore_step(tmp_path / "new", restore_dir="gs://bucket/run")
    save_run(tmp_path / "own", (1,))
    assert restore_step(tmp_path / "own", restore_dir=str(tmp_path / "nothing")) == 1


def test_reading_takes_what_is_asked_for_each_time_and_leaves_no_marker(tmp_path: Path) -> None:
    saved = save_run(tmp_path, (2, 4))
    state = make_state(seed=6)
    state.optimizers, state.rng = {}, False
    for asked, step in (("2", 2), ("2", 2), (None, 4)):
        restored = make_checkpointer(tmp_path, restore_ckpt=asked, clear_nn=True).load(state)
        assert restored is not None
        assert restored.step == step
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]
    assert torch.equal(state.model.state_dict()["norm.weight"], saved.model.state_dict()["norm.weight"])
    assert make_checkpointer(tmp_path / "empty").load(state) is None


# --- clear_nn ---


@pytest.mark.parametrize("continues", [False, True])
def test_clear_nn_keeps_the_tables_and_starts_the_dense_part_anew_once(tmp_path: Path, continues: bool) -> None:
    saved = save_run(tmp_path, (3,))
    state = make_state(seed=6)
    checkpointer = make_checkpointer(tmp_path, clear_nn=True, continue_training=continues)
    restored = checkpointer.restore(state)
    assert restored is not None
    assert restored.step == state.step == (3 if continues else 0)
    assert restored.data == {"at": 3}
    assert dict(restored.metrics) == (saved.metrics if continues else {})
    assert content_of(saved)["user"] == {
        fid: (entry.values.tobytes(), [{key: each.tobytes() for key, each in s.items()} for s in entry.state])
        for fid, entry in sorted((fid, state.store["user"].entry(fid)) for fid in content_of(saved)["user"])  # type: ignore[index]
    }
    assert not state.optimizers["dense"].state
    train(state, 1)
    checkpointer.save(state, reason="test").wait()
    checkpointer.close()
    again = make_state(seed=7)
    make_checkpointer(tmp_path, clear_nn=True, continue_training=continues).restore(again)
    assert content_of(again) == content_of(state), "a restart restores the new dense part"


def test_clear_nn_is_done_again_when_the_run_was_killed_before_its_first_save(tmp_path: Path) -> None:
    save_run(tmp_path, (3,))
    for _ in range(2):
        state = make_state(seed=6)
        make_checkpointer(tmp_path, clear_nn=True).restore(state)
        assert state.step == 0
        assert (tmp_path / "clear_nn").is_file()


def test_clear_nn_of_a_run_without_checkpoints_does_not_clear_its_first_ones(tmp_path: Path) -> None:
    assert save_more(tmp_path, 2, clear_nn=True) == 2
    assert restore_step(tmp_path, clear_nn=True) == 2


def test_clear_nn_and_aliases_contradict(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reload_alias_map is .* with clear_nn True"):
        make_checkpointer(tmp_path, clear_nn=True, reload_alias_map={"a": "b"})
