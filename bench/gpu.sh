#!/usr/bin/env bash
# gpu.sh [build folder [log folder]]: on a machine with a GPU, builds with CUDA, runs the tests of the CUDA kernels and
# times the kernels against the copy bandwidth and matrix rate of the same run. The table comes last.
#   CUDNN_FRONTEND=folder   where cudnn_frontend.h lies, if not among CUDA's own headers
#   MEGATRON_TEST_FILTER=…  only these tests (GoogleTest's syntax); - for none
#   MEGATRON_TIMEOUT=seconds for the tests, and for the benchmark
#   MEGATRON_SANITIZE=tools compute-sanitizer's tools to run the tests under: "racecheck memcheck initcheck" (bench/sanitize.sh)
#   MEGATRON_BENCH=0|filter none of the benchmark, or only the rows that contain this
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/gpu}
jobs=${MEGATRON_JOBS:-$(nproc)}
filter=${MEGATRON_TEST_FILTER:-*}
out=${2:-$build}
limit=${MEGATRON_TIMEOUT:-240}
mkdir -p "$out"
failed=0
stamp() { printf '%s: %d s\n' "$1" "$((SECONDS - ${2:-0}))"; }

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader
start=$SECONDS
cmake -B "$build" -G Ninja -DMEGATRON_CUDA=ON ${CUDNN_FRONTEND:+-Dcudnn_frontend_INCLUDE_DIR=$CUDNN_FRONTEND} \
  >"$out/configure.log" 2>&1 || { tail -40 "$out/configure.log"; exit 1; }
grep 'left out' "$out/configure.log"
ninja -C "$build" -j "$jobs" test_unit_cuda bench_cuda_kernels >"$out/build.log" 2>&1 ||
  { grep -E 'error|FAILED' "$out/build.log" | head -40; tail -20 "$out/build.log"; exit 1; }
stamp 'configured and built' "$start"

tests=$(find "$build" -name test_unit_cuda -type f -perm -u+x | head -1)
if [[ $filter != - ]]; then
  start=$SECONDS
  timeout "$limit" "$tests" --gtest_filter="$filter" --gtest_brief=1 >"$out/tests.log" 2>&1 || failed=1
  grep -vE '^Running|^$' "$out/tests.log" | cut -c1-300 | head -60
  stamp 'tests' "$start"
fi

if [[ -n ${MEGATRON_SANITIZE:-} ]]; then
  MEGATRON_SANITIZE_LOGS=$out MEGATRON_SANITIZE_LIMIT=$limit bash bench/sanitize.sh "$tests" "$MEGATRON_SANITIZE" || failed=1
fi

if [[ ${MEGATRON_BENCH:-} != 0 ]]; then
  start=$SECONDS
  bench=$(find "$build" -name bench_cuda_kernels -type f -perm -u+x | head -1)
  timeout "$limit" "$bench" "${MEGATRON_BENCH:-}" 2>&1 | tee "$out/bench.log" || failed=1
  stamp 'benchmark' "$start"
fi
exit "$failed"
