#!/usr/bin/env bash
# Writes every package of an environment into a lock file: write_lock.sh PYTHON FILE
# Local version tags ("+cpu") are cut off, so that the same file serves every platform's wheels.
set -euo pipefail

python=$1
file=$2
new=$(mktemp)
trap 'rm -f "$new"' EXIT
sed -n '/^#/p' "$file" >"$new"
# Peers of the benchmarks have their own file.
bench_only=$(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/\1/p' requirements-bench.lock | tr '_' '-' | paste -sd '|')
"$python" -m pip freeze --all --exclude-editable |
  sed -E 's/\+[a-z0-9.]+$//' |
  grep -viE "^(pip|monolith|${bench_only//-/[-_]})( @|==)" |
  LC_ALL=C sort -f >>"$new"
cat "$new" >"$file"
