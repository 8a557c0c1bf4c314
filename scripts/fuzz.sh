#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs them, two at a time.
#
#   fuzz.sh minute               all targets share a minute of two cores
#   fuzz.sh SECONDS [TARGET]     so long for each target, or for one
#
# Inputs come from cpp/fuzz/corpus, which is only read, and from build/fuzz/corpus, where finds are kept for the next
# run. An input that fails is kept in build/fuzz/artifacts.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build=build/fuzz/clang
corpus=build/fuzz/corpus
artifacts=build/fuzz/artifacts
jobs=2

scripts/install_system_packages.sh fuzz

# --- what to run
targets=()
for source in cpp/fuzz/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  [[ -n ${2:-} && $2 != "$name" ]] || targets+=("$name")
done
if [[ ${#targets[@]} -eq 0 ]]; then
  echo "no fuzz target '$2'; there are: $(basename -a -s _fuzz.cc cpp/fuzz/*_fuzz.cc | paste -sd ' ')" >&2
  exit 2
fi
if [[ ${1:?usage: fuzz.sh minute | SECONDS [TARGET]} == minute ]]; then
  rounds=$(((${#targets[@]} + jobs - 1) / jobs))
  seconds=$((60 / rounds))
else
  seconds=$1
fi
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "FUZZ_SECONDS must be a number of seconds, got '$seconds'" >&2; exit 2; }

# --- build: ninja recompiles only what changed
if [[ ! -f $build/build.ninja ]]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DMONOLITH_SANITIZE=address,undefined \
    -DMONOLITH_BUILD_FUZZERS=ON -DMONOLITH_BUILD_PYTHON=OFF -DMONOLITH_BUILD_TESTS=OFF >/dev/null
fi
cmake --build "$build" --target "${targets[@]/%/_fuzz}"

# --- run
# A pool keeps memory on purpose, so leaks are not looked for; a short quarantine leaves the memory limit to the parser.
export ASAN_OPTIONS="detect_leaks=0:quarantine_size_mb=16:malloc_context_size=1:allocator_may_return_null=0"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
mkdir -p "$artifacts"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Long inputs find little that short ones do not, and cost executions; the footer of an image alone has 1.6 kB.
most_bytes() {
  case $1 in
    table_image | framing) echo 4096 ;;
    framing_probe) echo 2048 ;;
    instance | tf_example | example | example_batch | example_batch_row_major) echo 512 ;;
    *) echo 1024 ;;
  esac
}

run_target() {
  local name=$1 log=$results/$1.log status=0
  mkdir -p "$corpus/$name"
  local arguments=(-rss_limit_mb=512 -malloc_limit_mb=256 -timeout=5)
  # Weighing inputs by rare features costs more time than the parsers themselves, hence no entropic schedule.
  # Processor time, so that the rate does not depend on the load of the machine.
  local TIMEFORMAT=%U
  { time "$build/cpp/fuzz/${name}_fuzz" "${arguments[@]}" -max_total_time="$seconds" -max_len="$(most_bytes "$name")" -entropic=0 \
    -dict=cpp/fuzz/records.dict -artifact_prefix="$artifacts/$name-" -print_final_stats=1 \
    "$corpus/$name" "cpp/fuzz/corpus/$name" >"$log" 2>&1; } 2>"$results/$name.cpu" || status=$?
  if [[ $status -eq 0 ]]; then
    local executions coverage rate
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log")
    rate=$(awk -v n="$executions" -v s="$(cat "$results/$name.cpu")" 'BEGIN { printf "%d", (s > 0 ? n / s : 0) }')
    printf '%-26s %9s executions, %6s per processor second, coverage %5s, ok\n' "$name" "$executions" "$rate" "$coverage"
    touch "$results/$name.passed"
    return
  fi
  printf '%-26s FAILED\n' "$name"
  grep -E 'fuzz: |ERROR: |runtime error: |SUMMARY: ' "$log" | head -8 | sed 's/^/    /'
  local input
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
  [[ -z $input ]] || echo "    repeat it: ASAN_OPTIONS=$ASAN_OPTIONS $build/cpp/fuzz/${name}_fuzz ${arguments[*]} $input"
}

# The slots are filled as they become free.
for name in "${targets[@]}"; do
  while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do wait -n; done
  run_target "$name" &
done
wait

passed=$(find "$results" -name '*.passed' | wc -l)
failed=$((${#targets[@]} - passed))
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
