#!/usr/bin/env bash
# Installs the Debian packages that pip cannot provide, when they are missing and this user may install them.
# Prints nothing when all is there.
#
#   install_system_packages.sh         packages of builds. Never fails: it names a package that cannot be installed, and
#                                      the build continues without it.
#   install_system_packages.sh test    packages of Python tests. Never fails: tests without their server are skipped.
#   install_system_packages.sh bench   what the peers of benchmarks need. Never fails: cases without their peer say so.
#   install_system_packages.sh fuzz    what fuzzing needs. Fails when it cannot be had: there is no fuzzing without.
set -u

install() {
  if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "not installed: $* (needs root and apt-get)" >&2
    return 1
  fi
  echo "installing Debian packages: $*" >&2
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get install -y -qq "$@" || { apt-get update -qq && apt-get install -y -qq "$@"; }; } >/dev/null 2>&1; then
    echo "could not install: $*" >&2
    return 1
  fi
}

missing=()
if [[ ${1:-} == fuzz ]]; then
  command -v clang++-14 >/dev/null || missing+=(clang-14)
  runtime=$(ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a 2>/dev/null)
  [[ -n $runtime ]] || missing+=(libclang-rt-14-dev)
  [[ ${#missing[@]} -gt 0 ]] || exit 0
  install "${missing[@]}" && exit 0
  echo "fuzzing needs clang 14 with its libFuzzer; as root: apt-get install ${missing[*]}" >&2
  exit 1
fi

if [[ ${1:-} == bench ]]; then
  # redis-check-rdb is the whole server under another name; the package redis-server would start one for the machine.
  command -v redis-server redis-check-rdb >/dev/null || install redis-tools || echo "going on without Redis" >&2
  exit 0
fi

if [[ ${1:-} == test ]]; then
  # The server and its Java; not zookeeperd, which would start one for the whole machine.
  [[ -e /usr/share/java/zookeeper.jar ]] || install zookeeper || echo "continuing without the tests of ZooKeeper" >&2
  exit 0
fi

command -v g++ >/dev/null || missing+=(g++)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
found_header=$(ls /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h 2>/dev/null)
[[ -n $found_header ]] || missing+=(libgtest-dev)
# Headers of the native request path of the model server; their libraries are opened at run time.
[[ -e /usr/include/nghttp2/nghttp2.h ]] || missing+=(libnghttp2-dev)
[[ -e /usr/include/openssl/ssl.h ]] || missing+=(libssl-dev)
[[ ${#missing[@]} -gt 0 ]] || exit 0
install "${missing[@]}" || echo "continuing; without libgtest-dev the C++ tests are skipped; without libnghttp2-dev and libssl-dev requests pass through Python" >&2
exit 0
