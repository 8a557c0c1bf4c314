"""Rows for tests of transforms: messages in, messages out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from monolith import _native
from monolith.data.records.line_id import LineIdFields
from monolith.data.records.messages import Example
from monolith.data.transforms import BuildContext, Transform


@dataclass
class Bench:
    """Parses messages into rows, runs operations on them and shows the rows as Examples."""

    record: str = "example"
    fields: LineIdFields = field(default_factory=LineIdFields.standard)
    seed: int = 0

    def __post_init__(self) -> None:
        self.columns = _native.Columns()
        self.parser = _native.RowParser(
            self.record, self.columns, keep_all=True, line_fields=self.fields.native(), seed=self.seed
        )

    @property
    def context(self) -> BuildContext:
        return BuildContext(columns=self.columns, line_fields=self.fields.native(), seed=self.seed)

    def rows(self, messages: Sequence[Any]) -> _native.Rows:
        return self.parser.parse(_native.Records([message.SerializeToString() for message in messages]))

    def examples(self, rows: _native.Rows) -> list[Any]:
        return [Example.FromString(payload) for payload in _native.encode_examples(rows, self.columns)]

    def run(self, transform: Transform, messages: Sequence[Any]) -> list[Any]:
        operation = transform.build(self.context)
        rows = self.rows(messages)
        operation.run(rows)
        assert (operation.rows_in, operation.rows_out) == (len(messages), len(rows))
        return self.examples(rows)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def make_bench() -> type[Bench]:
    return Bench


def make_example(
    *,
    label: Sequence[float] = (),
    features: dict[str, Sequence[int]] | None = None,
    **line_id: Any,
) -> Any:
    example = Example()
    example.label.extend(label)
    for name, ids in (features or {}).items():
        named = example.named_feature.add(name=name)
        named.feature.fid_v2_list.value.extend(ids)
    for name, value in line_id.items():
        if isinstance(value, list | tuple):
            getattr(example.line_id, name).extend(value)
        else:
            setattr(example.line_id, name, value)
    return example


@pytest.fixture(name="make_example")
def make_example_fixture() -> Callable[..., Any]:
    return make_example
