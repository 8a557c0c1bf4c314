"""The messages that records are made of, as protobuf classes: for tools, tests, and code that makes records.

Training and serving read records with the native parser, which agrees with these classes and is many times as quick.
The classes live in a separate descriptor pool, under the names that the original gives them, so that
``import tensorflow``, or the original's generated modules, may be loaded in the same process. Fields that a message
does not know survive: they are written again as they were read.

LineId can be given more fields::

    fields = LineIdFields.standard().extended({"did": (11, "string"), "video_play_time": (20, "int64")})
    messages = with_line_id(fields)
    example = messages.Example()
    example.line_id.did = "..."
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from monolith._proto.messages import Message, message_class, parse_bytes
from monolith.core.errors import ConfigError
from monolith.data.records._protobuf import build_pool
from monolith.data.records.line_id import LineIdFields

if TYPE_CHECKING:
    from monolith._proto import (
        data_op_config_pb2,
        example_pb2,
        feature_pb2,
        line_id_pb2,
        proto_parser_pb2,
        transform_config_pb2,
    )
    from monolith._proto.data_op_config_pb2 import LabelConf, TaskLabelConf, TFRecordFeatureDescription
    from monolith._proto.example_pb2 import (
        INDIVIDUAL,
        SHARED,
        ChannelCache,
        Example,
        ExampleBatch,
        ExampleBatchRowMajor,
        Feature,
        FeatureConfigs,
        FeatureData,
        FilterValues,
        NamedFeature,
        NamedFeatureList,
        NamedRawFeature,
        NamedRawFeatureList,
        RawFeature,
    )
    from monolith._proto.feature_pb2 import Feature as InstanceFeature
    from monolith._proto.line_id_pb2 import LineId
    from monolith._proto.proto_parser_pb2 import Instance, InstanceWrapper, LabelTag, Request
    from monolith._proto.tensorflow.core.example import example_pb2 as tf_example_pb2
    from monolith._proto.tensorflow.core.example import feature_pb2 as tf_feature_pb2
    from monolith._proto.tensorflow.core.example.example_pb2 import Example as TfExample
    from monolith._proto.tensorflow.core.example.example_pb2 import SequenceExample as TfSequenceExample
    from monolith._proto.tensorflow.core.example.feature_pb2 import Feature as TfFeature
    from monolith._proto.transform_config_pb2 import TransformConfig
    from monolith.data.sources.base import RecordKind

__all__ = [
    # rows and batches
    "Instance",
    "InstanceFeature",
    "InstanceWrapper",
    "LabelTag",
    "LineId",
    "Example",
    "ExampleBatch",
    "ExampleBatchRowMajor",
    "Feature",
    "NamedFeature",
    "NamedFeatureList",
    "NamedRawFeature",
    "NamedRawFeatureList",
    "RawFeature",
    "Request",
    "TfExample",
    "TfFeature",
    "TfSequenceExample",
    # other stored messages
    "ChannelCache",
    "FeatureConfigs",
    "FeatureData",
    "FilterValues",
    "LabelConf",
    "TaskLabelConf",
    "TFRecordFeatureDescription",
    "TransformConfig",
    # types and reserved names of columns
    "INDIVIDUAL",
    "SHARED",
    "LABEL",
    "LINE_ID",
    "WEIGHT",
    # families of classes
    "Message",
    "Messages",
    "STANDARD",
    "family_of",
    "parse_message",
    "record_class",
    "with_line_id",
]

LABEL = "__LABEL__"
"""The column of an ExampleBatch that holds the labels."""
LINE_ID = "__LINE_ID__"
"""The column of an ExampleBatch that holds serialized LineIds."""
WEIGHT = "instance_weight"
"""The column of an ExampleBatch that holds the weight."""

M = TypeVar("M", bound=Message)

_FULL_NAMES = {
    "Instance": "parser.proto.Instance",
    "InstanceFeature": "idl.matrix.proto.Feature",
    "InstanceWrapper": "parser.proto.InstanceWrapper",
    "LabelTag": "parser.proto.LabelTag",
    "LineId": "idl.matrix.proto.LineId",
    "Example": "monolith.io.proto.Example",
    "ExampleBatch": "monolith.io.proto.ExampleBatch",
    "ExampleBatchRowMajor": "monolith.io.proto.ExampleBatchRowMajor",
    "Feature": "monolith.io.proto.Feature",
    "NamedFeature": "monolith.io.proto.NamedFeature",
    "NamedFeatureList": "monolith.io.proto.NamedFeatureList",
    "NamedRawFeature": "monolith.io.proto.NamedRawFeature",
    "NamedRawFeatureList": "monolith.io.proto.NamedRawFeatureList",
    "RawFeature": "monolith.io.proto.RawFeature",
    "Request": "parser.proto.Request",
    "TfExample": "tensorflow.Example",
    "TfFeature": "tensorflow.Feature",
    "TfSequenceExample": "tensorflow.SequenceExample",
    "ChannelCache": "monolith.io.proto.ChannelCache",
    "FeatureConfigs": "monolith.io.proto.FeatureConfigs",
    "FeatureData": "monolith.io.proto.FeatureData",
    "FilterValues": "monolith.io.proto.FilterValues",
    "LabelConf": "monolith.native_training.data.config.LabelConf",
    "TaskLabelConf": "monolith.native_training.data.config.TaskLabelConf",
    "TFRecordFeatureDescription": "monolith.native_training.data.config.TFRecordFeatureDescription",
    "TransformConfig": "monolith.native_training.data.TransformConfig",
}

_RECORDS = {
    "instance": "Instance",
    "example": "Example",
    "example_batch": "ExampleBatch",
    "example_batch_row_major": "ExampleBatchRowMajor",
    "tf_example": "TfExample",
}


class Messages:
    """The classes of one family: they fit together, and their LineId has the fields of ``line_id_fields``.

    Make one with `with_line_id`. The classes of this module itself are the standard family.
    """

    Instance: type[proto_parser_pb2.Instance]
    InstanceFeature: type[feature_pb2.Feature]
    InstanceWrapper: type[proto_parser_pb2.InstanceWrapper]
    LabelTag: type[proto_parser_pb2.LabelTag]
    LineId: type[line_id_pb2.LineId]
    Example: type[example_pb2.Example]
    ExampleBatch: type[example_pb2.ExampleBatch]
    ExampleBatchRowMajor: type[example_pb2.ExampleBatchRowMajor]
    Feature: type[example_pb2.Feature]
    NamedFeature: type[example_pb2.NamedFeature]
    NamedFeatureList: type[example_pb2.NamedFeatureList]
    NamedRawFeature: type[example_pb2.NamedRawFeature]
    NamedRawFeatureList: type[example_pb2.NamedRawFeatureList]
    RawFeature: type[example_pb2.RawFeature]
    Request: type[proto_parser_pb2.Request]
    TfExample: type[tf_example_pb2.Example]
    TfFeature: type[tf_feature_pb2.Feature]
    TfSequenceExample: type[tf_example_pb2.SequenceExample]
    ChannelCache: type[example_pb2.ChannelCache]
    FeatureConfigs: type[example_pb2.FeatureConfigs]
    FeatureData: type[example_pb2.FeatureData]
    FilterValues: type[example_pb2.FilterValues]
    LabelConf: type[data_op_config_pb2.LabelConf]
    TaskLabelConf: type[data_op_config_pb2.TaskLabelConf]
    TFRecordFeatureDescription: type[data_op_config_pb2.TFRecordFeatureDescription]
    TransformConfig: type[transform_config_pb2.TransformConfig]

    def __init__(self, line_id_fields: LineIdFields) -> None:
        self.line_id_fields = line_id_fields
        self.pool = build_pool(line_id_fields)
        for name, full_name in _FULL_NAMES.items():
            setattr(self, name, message_class(self.pool, full_name))

    def record_class(self, record: RecordKind) -> type[Message]:
        """Return the class of a kind of record.

        Raises:
            ConfigError: The kind is unknown.
        """
        if record not in _RECORDS:
            raise ConfigError(f"record kind {record!r} is not known; use one of {', '.join(_RECORDS)}")
        found: type[Message] = getattr(self, _RECORDS[record])
        return found


_FAMILIES: dict[LineIdFields, Messages] = {}


def with_line_id(fields: LineIdFields) -> Messages:
    """Return the family of message classes whose LineId has these fields; equal fields give the same family."""
    family = _FAMILIES.get(fields)
    return family if family is not None else _FAMILIES.setdefault(fields, Messages(fields))


def family_of(message: Message) -> Messages:
    """Return the family that ``message`` belongs to.

    Raises:
        ConfigError: It belongs to none, as messages of other generated modules do.
    """
    pool = message.DESCRIPTOR.file.pool
    for family in _FAMILIES.values():
        if family.pool is pool:
            return family
    raise ConfigError(
        f"a {message.DESCRIPTOR.full_name} of another module was given; "
        "parse its bytes with parse_message of monolith.data.records.messages"
    )


def parse_message(kind: type[M], payload: bytes, source: str = "record") -> M:
    """Return the message of class ``kind`` that ``payload`` is the wire form of.

    Raises:
        RecordCorrupt: It is not; the text calls it ``source``.
    """
    return parse_bytes(kind, payload, source)


def record_class(record: RecordKind) -> type[Message]:
    """Return the standard class of a kind of record.

    Raises:
        ConfigError: The kind is unknown.
    """
    return STANDARD.record_class(record)


STANDARD = with_line_id(LineIdFields.standard())
"""The classes with the published LineId."""

if not TYPE_CHECKING:
    INDIVIDUAL = 0
    SHARED = 1
    globals().update({name: getattr(STANDARD, name) for name in _FULL_NAMES})
