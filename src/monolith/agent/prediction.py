"""Make the tensors of Predict requests from records.

Main type: ``make_record_tensor``: serialised records as a one-dimensional tensor of texts, which ``instances``,
``examples`` and ``example_batch`` of a signature take.
"""

from __future__ import annotations

from collections.abc import Sequence

from monolith.agent.messages import TensorProto
from monolith.core.errors import ConfigError
from monolith.data.records.formatter import parse_record

__all__ = ["DT_STRING", "make_instance_tensor", "make_record_tensor"]

DT_STRING = 7
"""TensorFlow's number of the type."""


def make_record_tensor(records: Sequence[bytes]) -> TensorProto:
    """Return serialised records as a tensor with one dimension.

    Raises:
        ConfigError: There is no record.
    """
    if not records:
        raise ConfigError("records are [], expected at least one; give a record")
    tensor = TensorProto(dtype=DT_STRING)  # type: ignore[arg-type]
    tensor.tensor_shape.dim.add(size=len(records))
    tensor.string_val.extend(records)
    return tensor


def make_instance_tensor(text: str, count: int = 1, *, source: str = "text") -> TensorProto:
    """Return one instance, repeated, as a tensor.

    Args:
        text: The instance as JSON, protobuf text or key dump.
        count: Size of the tensor.
        source: Name of the text, for errors.

    Raises:
        RecordCorrupt: The text is not an instance.
    """
    return make_record_tensor([parse_record(text, "instance", source=source).SerializeToString()] * count)
