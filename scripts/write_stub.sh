#!/usr/bin/env bash
# Writes the type stub of the native module, as its own docstrings and signatures give it.
#   scripts/write_stub.sh PYTHON OUT
set -euo pipefail
"$1" -m nanobind.stubgen --quiet -m monolith._native -o "$2"
