"""Checkpoints: a state without its rows is never taken for a whole one."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.errors import ArtifactError, ConfigError, SchemaMismatch


def make_model(dim: int = 2) -> torch.nn.Sequential:
    return torch.nn.Sequential(mt.nn.EmbeddingBag(dim, optimizer=mt.Adagrad(0.5), mode="sum"), torch.nn.Linear(dim, 1))


def train(model: torch.nn.Module, *ids: int) -> None:
    model(torch.tensor([list(ids)])).sum().backward()


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_save_and_load_bring_rows_state_and_step_back(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    train(model, 1, 2)
    mt.nn.save(model, tmp_path / "rows")
    mt.nn.load(other, tmp_path / "rows")
    other[1].load_state_dict(model[1].state_dict())
    for each in (model, other):
        train(each, 2, 3)
    np.testing.assert_array_equal(other[0].table.lookup([1, 2, 3]), model[0].table.lookup([1, 2, 3]))
    assert other[0].steps == 2


def test_a_state_dict_brings_the_rows_of_its_snapshot(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    train(model, 1, 2)
    mt.nn.save(model, tmp_path / "rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = through_file(model.state_dict())
    other.load_state_dict(state)
    np.testing.assert_array_equal(other[0].table.lookup([1, 2]), model[0].table.lookup([1, 2]))
    torch.testing.assert_close(other[1].weight, model[1].weight)


def test_a_model_that_trains_while_it_is_saved_is_newer_than_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = make_model(), make_model()
    train(model, 1)
    tables = model[0].table_set
    write = tables.write

    def write_then_train(folder: Path) -> None:
        write(folder)
        train(model, 1)

    monkeypatch.setattr(tables, "write", write_then_train)
    mt.nn.save(model, tmp_path / "rows")
    with pytest.warns(mt.nn.RowsNotSavedWarning):
        model.state_dict()
    mt.nn.load(other, tmp_path / "rows")
    assert other[0].steps == 1


def test_a_state_dict_after_further_training_warns_and_is_refused(tmp_path: Path) -> None:
    model = make_model()
    train(model, 1)
    mt.nn.save(model, tmp_path / "rows")
    train(model, 2)
    with pytest.warns(mt.nn.RowsNotSavedWarning, match=r"mt\.nn\.save"):
        state = through_file(model.state_dict())
    with pytest.raises(ArtifactError, match=r"mt\.nn\.save"):
        make_model().load_state_dict(state)


def test_an_untrained_module_has_a_whole_state() -> None:
    make_model().load_state_dict(through_file(make_model().state_dict()))


def test_a_moved_snapshot_is_loaded_first(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    train(model, 1)
    mt.nn.save(model, tmp_path / "rows")
    state = model.state_dict()
    (tmp_path / "rows").rename(tmp_path / "moved")
    with pytest.raises(ArtifactError, match=r"mt\.nn\.load"):
        other.load_state_dict(state)
    mt.nn.load(other, tmp_path / "moved")
    other.load_state_dict(state)
    np.testing.assert_array_equal(other[0].table.lookup([1]), model[0].table.lookup([1]))


def test_a_renamed_table_is_refused_and_keeps_its_rows(tmp_path: Path) -> None:
    saved, renamed = (mt.nn.EmbeddingBag(2, optimizer=mt.Adagrad(0.5), name=name) for name in ("item", "movie"))
    train(saved, 1)
    train(renamed, 2)
    mt.nn.save(saved, tmp_path / "rows")
    with pytest.raises(SchemaMismatch, match=r"has tables \['item'\], expected \['movie'\]"):
        mt.nn.load(renamed, tmp_path / "rows")
    assert renamed.table.contains([1, 2]).tolist() == [False, True]


def test_a_collection_with_a_new_feature_loads_the_rows_of_the_old_one(tmp_path: Path) -> None:
    old = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 2)])
    new = mt.nn.EmbeddingBagCollection([mt.nn.Feature("user", 2), mt.nn.Feature("item", 2)])
    old({"user": (torch.tensor([7]), torch.tensor([0, 1]))})["user"].sum().backward()
    mt.nn.save(old, tmp_path / "rows")
    mt.nn.load(new, tmp_path / "rows")
    assert (len(new.store["user"]), len(new.store["item"])) == (1, 0)


def test_a_snapshot_is_never_written_over(tmp_path: Path) -> None:
    model = make_model()
    mt.nn.save(model, tmp_path / "rows")
    with pytest.raises(ConfigError, match="new folder"):
        mt.nn.save(model, tmp_path / "rows")


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"version": 9, "id": "a", "step": 1}', b'{"version": 1}'])
def test_an_incomplete_snapshot_is_refused_and_changes_nothing(tmp_path: Path, content: bytes | None) -> None:
    model = make_model()
    train(model, 1)
    mt.nn.save(model, tmp_path / "rows")
    manifest = tmp_path / "rows" / "0" / "module.json"
    if content is None:
        manifest.unlink()
    else:
        manifest.write_bytes(content)
    train(model, 2)
    before = model[0].table.lookup([1, 2])
    with pytest.raises(ArtifactError, match="rows"):
        mt.nn.load(model, tmp_path / "rows")
    np.testing.assert_array_equal(model[0].table.lookup([1, 2]), before)


def test_a_state_of_other_tables_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'table': 3"):
        make_model(2)[0].load_state_dict(make_model(3)[0].state_dict())
    with pytest.raises(ArtifactError, match="version 7"):
        make_model()[0].set_extra_state({"version": 7})


def test_a_model_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Linear"):
        mt.nn.save(torch.nn.Linear(1, 1), tmp_path)


def test_rows_are_not_parameters_of_their_model() -> None:
    model = make_model()
    train(model, 1)
    assert [name for name, _ in model.named_parameters()] == ["1.weight", "1.bias"]
