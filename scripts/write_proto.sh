#!/usr/bin/env bash
# Writes what Python needs of proto/: the descriptors as a module, and a type stub for each file.
#   scripts/write_proto.sh PYTHON OUT
#
# There are no *_pb2.py modules on purpose: those put their messages into protobuf's process-wide pool, where they would
# clash with the original's or TensorFlow's in the same process. monolith.data.records makes the classes in a pool of its
# own.
set -euo pipefail
python=$(realpath -s "$(command -v "$1")") out=$(realpath -m "$2")
cd "$(dirname "$0")/../proto"
mkdir -p "$out"
find "$out" -name '*_pb2.pyi' -delete
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mapfile -t files < <(find . -name '*.proto' -printf '%P\n' | LC_ALL=C sort)
"$python" -m grpc_tools.protoc -I . --include_imports --descriptor_set_out="$scratch/set" \
  --pyi_out="$out" "${files[@]}"

{
  echo '"""The descriptors of every message under proto/. Generated: `make proto` rebuilds it."""'
  echo
  echo 'import base64'
  echo
  echo '__all__ = ["DESCRIPTOR_SET"]'
  echo
  echo '# A serialized google.protobuf.FileDescriptorSet; a file comes after those that it imports.'
  echo 'DESCRIPTOR_SET: bytes = base64.b64decode("""'
  base64 -w 118 "$scratch/set"
  echo '""")'
} >"$out/descriptors.py"

# The stubs name each other as if they were at the root; here they are in monolith._proto. Their bare Mapping is not ours
# to complete.
find "$out" -name '*_pb2.pyi' -print0 | xargs -0 sed -i -E \
  -e '1i # mypy: disable-error-code="type-arg"' \
  -e 's/^import ([a-z_]+_pb2) as/from monolith._proto import \1 as/' \
  -e 's/^from (tensorflow|tensorflow_serving)(\.| import)/from monolith._proto.\1\2/'
