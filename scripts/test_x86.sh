#!/usr/bin/env bash
# Cross-compiles the engine and its tests for x86-64 and runs them under QEMU, once per level of the kernels.
#
#   test_x86.sh build/x86
#
# Needs a cross compiler and qemu-user: apt-get install g++-12-x86-64-linux-gnu qemu-user googletest. On x86-64 the
# compiler of the machine serves, without QEMU. Where a tool is absent, the script prints its name and ends with success.
# GTEST_FILTER selects tests. CXX_X86 and QEMU_X86 name other tools.
set -euo pipefail

build=${1:-build/x86}
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
export PATH="$root/.venv/bin:$PATH"
unset MAKEFLAGS  # of a make above, whose pool of jobs ninja would look for in vain

skip() {
  echo "test-x86 skipped: $1 is absent; install it with: apt-get install $2"
  exit 0
}

gtest=/usr/src/googletest
[[ -d $gtest ]] || skip "$gtest" googletest
if [[ $(uname -m) == x86_64 ]]; then
  compiler=${CXX_X86:-g++}
  binutils=
  emulator=()
else
  compiler=${CXX_X86:-x86_64-linux-gnu-g++-12}
  binutils=x86_64-linux-gnu-
  qemu=${QEMU_X86:-qemu-x86_64}
  command -v "$qemu" >/dev/null || skip "$qemu" qemu-user
  emulator=("$qemu" -cpu max -L /usr/x86_64-linux-gnu)
  # QEMU 7.2 ends a forked process that starts a thread.
  export GTEST_FILTER=${GTEST_FILTER:--Pool.*Fork*:Pool.*Child*}
fi
command -v "$compiler" >/dev/null || skip "$compiler" g++-12-x86-64-linux-gnu

common=(-G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=x86_64 "-DCMAKE_CXX_COMPILER=$compiler"
  "-DCMAKE_C_COMPILER=${compiler/g++/gcc}")
if [[ ! -e $build/gtest/lib/libgtest_main.a ]]; then
  cmake -S "$gtest" -B "$build/gtest-build" "${common[@]}" -DBUILD_GMOCK=OFF -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_INSTALL_PREFIX=$root/$build/gtest" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
  cmake --build "$build/gtest-build" --target install >/dev/null
fi
cmake -S . -B "$build" "${common[@]}" -DMONOLITH_BUILD_PYTHON=OFF -DMONOLITH_BUILD_TESTS=ON -DMONOLITH_TESTED=engine \
  "-DMONOLITH_AVX512=${MONOLITH_AVX512:-OFF}" "-DGTest_DIR=$root/$build/gtest/lib/cmake/GTest" >/dev/null
cmake --build "$build" --target engine_tests

# --- code for other instructions must not be shared by name: the linker would keep any of the copies
objects=$(find "$build/CMakeFiles/engine.dir" -path '*/kernels/avx*.o')
[[ -n $objects ]] || { echo "test-x86: no object file of a kernel level in $build" >&2; exit 1; }
for object in $objects; do
  # DW.ref is the address of the runtime's handler of exceptions, the same in every file.
  if shared=$("${binutils}nm" --demangle --defined-only "$object" | grep -E ' [WVu] ' | grep -v 'DW.ref.'); then
    echo "test-x86: $object defines code that other files share by name; inline it or move it to an unnamed namespace:" >&2
    echo "$shared" >&2
    exit 1
  fi
done

levels=(baseline avx2)
[[ ${MONOLITH_AVX512:-OFF} == OFF ]] || levels+=(avx512)
for level in "${levels[@]}"; do
  echo "== C++ tests of the engine, x86-64, kernels $level"
  MONOLITH_KERNELS=$level "${emulator[@]}" "$build/engine_tests" --gtest_brief=1
done
