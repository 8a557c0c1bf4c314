#!/usr/bin/env bash
# Installs the Debian packages that pip cannot provide, when they are missing and this user may install them.
# Prints nothing when all is there. Never fails: what cannot be installed is named, and the build goes on without it.
set -u

missing=()
command -v g++ >/dev/null || missing+=(g++)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
found_header=$(ls /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h 2>/dev/null)
[[ -n $found_header ]] || missing+=(libgtest-dev)
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "not installed: ${missing[*]} (needs root and apt-get); without libgtest-dev the C++ tests are skipped" >&2
  exit 0
fi
echo "installing Debian packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get install -y -qq "${missing[@]}" || { apt-get update -qq && apt-get install -y -qq "${missing[@]}"; }; } \
    >/dev/null 2>&1; then
  echo "could not install: ${missing[*]}; going on without (C++ tests need libgtest-dev)" >&2
fi
exit 0
