"""The names of the original resolve where users know them, and ``OriginalNames`` declares the same as ``Model``."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from monolith.compat import OriginalNames
from monolith.core.errors import ConfigError
from monolith.features import Model

NAMES = [
    *(
        ("monolith.embedding", name)
        for name in ("FileCloseHook", "WritableFile", "read_entry_dump", "write_entry_dump")
    ),
    *(
        ("monolith.training.hooks", name)
        for name in ("ActionFileHook", "Barrier", "BarrierHook", "FileCloseHook", "StoreHealthHook", "TideStopHook")
    ),
    ("monolith.ps", "PsClient"),
]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_that_users_type_resolves_to_the_object_in_compat(module: str, name: str) -> None:
    package = importlib.import_module(module)
    assert getattr(package, name).__module__.startswith("monolith.compat.")
    assert name in package.__all__


@pytest.mark.parametrize("module", ["monolith.embedding", "monolith.training.hooks", "monolith.ps", "monolith.compat"])
def test_a_name_that_a_package_does_not_have_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = importlib.import_module(module).nonsense


def test_importing_a_product_package_does_not_import_compat() -> None:
    modules = "monolith.embedding, monolith.ps, monolith.features, monolith.training.hooks"
    code = f"import sys, {modules}; print(*(name for name in sys.modules if name.startswith('monolith.compat')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def test_reading_an_entry_dump_needs_no_torch() -> None:
    code = "import sys; from monolith.embedding import read_entry_dump; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


class Old(OriginalNames):
    def __init__(self) -> None:
        super().__init__()
        self.create_embedding_feature_column("user", 2, 30, combiner="reduce_mean", slot=1)
        self.create_embedding_feature_column("history", max_seq_length=5, shared_name="user", combiner="first_n")
        self.bias = self.lookup_embedding_slice(["user"], "bias", 1, out_type="add_n")
        self.create_embedding_feature_column("user", 9, combiner="reduce_sum")


class New(Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1, expire_days=30, occurrence_threshold=2, combiner="mean")
        self.embedding_feature("history", max_sequence_length=5, shared_with="user", combiner="first")
        self.bias = self.embedding_slice(["user"], "bias", 1, out="add_n")


def test_the_original_names_declare_the_same_features_and_slices() -> None:
    old, new = Old(), New()
    assert dict(old.declaration.features) == dict(new.declaration.features)
    assert old.bias.layout == new.bias.layout


def test_the_original_names_refuse_an_unknown_combiner() -> None:
    with pytest.raises(ConfigError, match=r"combiner is 'max'.*reduce_sum"):
        OriginalNames().create_embedding_feature_column("user", combiner="max")
