#!/usr/bin/env bash
# gpu.sh [build folder [log folder]]: on a machine with a GPU, builds with CUDA, runs the tests of the CUDA kernels and, on
# the GPU, those of the ops, the golden values and parity, and times the kernels against the copy bandwidth and matrix rate
# of the same run. The table comes last.
#   CUDNN_FRONTEND=folder   where cudnn_frontend.h lies, if not among CUDA's own headers
#   MEGATRON_TESTS=names    only these programs, of those below
#   MEGATRON_TEST_FILTER=…  only these tests (GoogleTest's syntax); - for none
#   MEGATRON_TIMEOUT=seconds for each of the programs, and for the benchmark
#   MEGATRON_SANITIZE=tools compute-sanitizer's tools to run the tests under: "racecheck memcheck initcheck" (bench/sanitize.sh)
#   MEGATRON_BENCH=0|filter none of the benchmark, or only the rows that contain this
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/gpu}
jobs=${MEGATRON_JOBS:-$(nproc)}
read -ra programs <<<"${MEGATRON_TESTS:-unit_cuda unit_ops golden_numerics golden_megatron_model golden_hf_models parity}"
filter=${MEGATRON_TEST_FILTER:-}
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
ninja -C "$build" -j "$jobs" test_unit_cuda "${programs[@]/#/test_}" bench_cuda_kernels >"$out/build.log" 2>&1 ||
  { grep -E 'error|FAILED' "$out/build.log" | head -40; tail -20 "$out/build.log"; exit 1; }
stamp 'configured and built' "$start"

built() { find "$build" -name "$1" -type f -perm -u+x | head -1; }
for name in "${programs[@]}"; do
  [[ $filter == - ]] && break
  start=$SECONDS
  all=*
  [[ $name == parity ]] && all=Cuda*  # the other layouts are as many again, and of the same kernels
  MEGATRON_TEST_DEVICE=cuda timeout "$limit" "$(built "test_$name")" --gtest_filter="${filter:-$all}" --gtest_brief=1 \
    >"$out/$name.log" 2>&1 || failed=1
  grep -vE '^Running|^$' "$out/$name.log" | cut -c1-300 | head -60
  stamp "$name" "$start"
done

if [[ -n ${MEGATRON_SANITIZE:-} ]]; then
  MEGATRON_SANITIZE_LOGS=$out MEGATRON_SANITIZE_LIMIT=$limit bash bench/sanitize.sh "$(built test_unit_cuda)" "$MEGATRON_SANITIZE" || failed=1
fi

if [[ ${MEGATRON_BENCH:-} != 0 ]]; then
  start=$SECONDS
  timeout "$limit" "$(built bench_cuda_kernels)" "${MEGATRON_BENCH:-}" 2>&1 | tee "$out/bench.log" || failed=1
  stamp 'benchmark' "$start"
fi
exit "$failed"
