#!/usr/bin/env bash
# Builds engine, module and tests with sanitizers, and runs the C++ tests and the Python tests of native code under them.
#
#   test_sanitizers.sh address,undefined build/asan
#   test_sanitizers.sh thread            build/tsan
#
# The release build is not touched: Python finds the sanitized module in BUILD/overlay, a copy of the package made of
# links, which stands first on the path. Extra arguments go to pytest. LOAD_SECONDS is the duration of the load test.
set -euo pipefail

sanitizers=$1
build=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python="$root/.venv/bin/python"
export PATH="$root/.venv/bin:$PATH"
unset MAKEFLAGS  # of a make above, whose pool of jobs ninja would look for in vain

targets=(_native engine_tests)
# Races need threads: the suites of single-threaded code run under the address sanitizer only. So does torch_threads,
# because the sanitizer does not see how OpenMP of torch orders its threads.
candidates=(tests/unit/embedding tests/unit/features/test_native_layouts.py tests/unit/data/test_dataset.py)
for suite in embedding_store table source work_list; do candidates+=("tests/conformance/test_$suite.py"); done
suites=()
if [[ $sanitizers == thread ]]; then
  for name in bad_input expiry_guard leak_warnings optimizers row_request shard_map specs torch_threads; do
    suites+=("--ignore=tests/unit/embedding/test_$name.py")
  done
else
  candidates+=(tests/unit/data/test_native_parser.py tests/unit/data/transforms tests/parity)
  # PyTorch's and gRPC's own code, and pure Python.
  for name in layer loss dense_optimizer checkpoint config control discovery metric params ps task; do
    suites+=(--ignore-glob="*/test_${name}_vectors.py")
  done
  suites+=(--ignore-glob="*/test_agent_vectors_*.py")
fi
for suite in "${candidates[@]}"; do
  [[ ! -e $suite ]] || suites+=("$suite")
done

cmake -S . -B "$build" -G Ninja -DMONOLITH_SANITIZE="$sanitizers" -DPython_EXECUTABLE="$python" \
  -DCMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" >/dev/null
cmake --build "$build" --target "${targets[@]}"

# --- the package, with the sanitized module in the place of the released one
overlay="$root/$build/overlay"
rm -rf "$overlay"
mkdir -p "$overlay/monolith"
ln -s "$root"/src/monolith/* "$overlay/monolith/"
rm -f "$overlay"/monolith/_native*.so
ln -s "$root/$build"/_native*.so "$overlay/monolith/"
# The editable install answers `import monolith` before the path is asked; take it out of the way.
cat >"$overlay/sitecustomize.py" <<'PYTHON'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "monolith" not in type(finder).__module__]
PYTHON

# --- how to run
gcc_file() { realpath "$(${CXX:-g++} -print-file-name="$1")"; }
runner=()
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export ASAN_OPTIONS="detect_leaks=0:halt_on_error=1"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:suppressions=$root/scripts/tsan.supp"
# libstdc++ must be there before the sanitizer looks for the functions it wraps, or the first C++ exception aborts.
if [[ $sanitizers == thread ]]; then
  preload="$(gcc_file libtsan.so) $(gcc_file libstdc++.so)"
  # TSan needs the address layout that it was built for; randomisation breaks it on newer kernels.
  runner=(setarch "$(uname -m)" -R)
else
  preload="$(gcc_file libasan.so) $(gcc_file libubsan.so) $(gcc_file libstdc++.so)"
fi

# The model server under load, with swaps and cuts.
export MONOLITH_LOAD_SECONDS=${LOAD_SECONDS:-4}
echo "== C++ tests, -fsanitize=$sanitizers"
"${runner[@]}" ctest --test-dir "$build" --parallel 2 --output-on-failure --no-tests=ignore

echo "== Python tests, -fsanitize=$sanitizers"
under_sanitizer=(env "LD_PRELOAD=$preload" "PYTHONPATH=$overlay" PYTHONMALLOC=malloc MONOLITH_SANITIZED="$sanitizers")
loaded=$("${runner[@]}" "${under_sanitizer[@]}" "$python" -c 'import monolith._native as m; print(m.__file__)')
[[ $loaded == "$overlay"/* ]] || { echo "loaded $loaded instead of the sanitized module" >&2; exit 1; }
run_tests() {
  "${runner[@]}" "${under_sanitizer[@]}" "$python" -m pytest --capture=sys -p no:cacheprovider "$@" "${suites[@]}" 2>&1 |
    tee "$build/pytest.log"
}
status=0
run_tests "$@" || status=$?
if ((status != 0)) && grep --quiet "ThreadSanitizer failed to allocate" "$build/pytest.log"; then
  echo "== TSan could not map its own memory, which is no finding; the tests run once more"
  status=0
  run_tests "$@" || status=$?
fi
exit "$status"
