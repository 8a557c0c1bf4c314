"""What is generated from proto/ is current, and alone in its pool."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "src/monolith/_proto"


def generated_files(folder: Path) -> dict[str, str]:
    found = [*folder.rglob("*.pyi"), folder / "descriptors.py"]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_the_checked_in_descriptors_and_stubs_are_current(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/write_proto.sh", sys.executable, tmp_path], check=True)
    assert generated_files(tmp_path) == generated_files(GENERATED), "run `make proto`"


def test_messages_load_beside_the_generated_modules_of_the_same_messages(tmp_path: Path) -> None:
    """As in a process that has TensorFlow, or the original, loaded."""
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", f"--python_out={tmp_path}", *protos],
        check=True,
    )
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from monolith.data.records import messages
import example_pb2, proto_parser_pb2
from tensorflow.core.example import example_pb2 as tf
for theirs, ours in [(example_pb2.Example, messages.Example), (proto_parser_pb2.Instance, messages.Instance),
                     (tf.Example, messages.TfExample), (example_pb2.ExampleBatch, messages.ExampleBatch)]:
    assert theirs is not ours
    assert theirs.DESCRIPTOR.full_name == ours.DESCRIPTOR.full_name
line = example_pb2.Example()
line.line_id.uid = 7
line.label.append(1.0)
assert messages.Example.FromString(line.SerializeToString()).line_id.uid == 7
from tensorflow_serving import apis_pb2
from monolith.serving.api import messages as serving
request = apis_pb2.PredictRequest(output_filter=["score"])
request.model_spec.version.value = 3
assert serving.PredictRequest is not apis_pb2.PredictRequest
assert serving.PredictRequest.FromString(request.SerializeToString()).model_spec.version.value == 3
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path], check=True)


def test_two_modules_import_protobuf() -> None:
    importing = [
        str(path.relative_to(ROOT / "src"))
        for path in sorted((ROOT / "src").rglob("*.py"))
        if re.search(r"^\s*(import|from) google\b", path.read_text(), re.MULTILINE)
    ]
    assert importing == ["monolith/_proto/messages.py", "monolith/data/records/_protobuf.py"]
