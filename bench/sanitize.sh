#!/usr/bin/env bash
# sanitize.sh PROGRAM [tools]: runs test_unit_cuda under compute-sanitizer's tools ("racecheck memcheck initcheck", or
# those named), many parts of it at once, and prints a line for each part. Ends with 0 if all ended and nothing was found.
#   MEGATRON_SANITIZE_JOBS=n     parts at once (4: they share the GPU by turns)
#   MEGATRON_SANITIZE_LIMIT=s    seconds for everything (600); what has not ended then is told
#   MEGATRON_SANITIZE_ONLY=regex only parts whose name matches this
#   MEGATRON_SANITIZE_LOGS=folder
# Kernels are hundreds of times slower here, so the tests take smaller sizes (MEGATRON_SANITIZED, tests/unit/cuda/twin.h) that
# still reach every kernel: several tiles, tails, clusters. Where a part names dtypes, the tests take those alone.
# Racecheck sees shared memory alone, which belongs to one kernel, so it looks at our kernels and not at those of cuBLAS,
# cuDNN and CUB. What TMA writes and wgmma reads there is the work of no thread, and racecheck knows nothing of it. The other
# tools follow memory from kernel to kernel, and so look at all kernels.
# Initcheck does not see what TMA writes, as cuBLAS's GEMMs and our own and the attention of cuDNN do: it would
# report each read of their results. Where they run, tests get memory that is full of NaN instead, which initcheck takes for
# written, and in which a read before a write shows in the results (tests/unit/cuda/poisoned_memory.h).
# Left out: NCCL and groups of processes, which launch no kernel of ours that is not here;
# attention of fp64 and fp16, whose kernels are those of fp32 and bf16.
set -uo pipefail
program=$(realpath "${1:?sanitize.sh PROGRAM [tools]}")
tools=${2:-racecheck memcheck initcheck}
jobs=${MEGATRON_SANITIZE_JOBS:-4}
logs=${MEGATRON_SANITIZE_LOGS:-$(mktemp -d)}
mkdir -p "$logs"

# name, dtypes (+ for all), tests; the longest first.
parts='
attention-fp32 +         CudaAttention.Fp32:CudaAttention.Merge
groups         +         CudaThreadGroups.*
grouped-bf16   bf16      CudaGemm.Grouped*
grouped-fp16   fp16      CudaGemm.Grouped*
grouped-wide   fp64,fp32 CudaGemm.Grouped*
gemm-swiglu    +         CudaGemmSwiglu.*-*ALayer*
attention-bf16 +         CudaAttention.Bf16
index          +         CudaIndex.*
elementwise    +         CudaElementwise.*
scan-bf16      bf16      CudaRecurrent.StateSpaceScan
scan-fp16      fp16      CudaRecurrent.StateSpaceScan
scan-fp32      fp32      CudaRecurrent.StateSpaceScan
scan-fp64      fp64      CudaRecurrent.StateSpaceScan
delta-bf16     bf16      CudaRecurrent.GatedDeltaRule
delta-fp16     fp16      CudaRecurrent.GatedDeltaRule
delta-wide     fp64,fp32 CudaRecurrent.GatedDeltaRule
recurrent      +         CudaRecurrent.*-*StateSpaceScan:*GatedDeltaRule
logits-alone   +         CudaGemmSoftmaxStats.Padding*:CudaGemmSoftmaxStats.Shows*
rows-bf16      bf16      CudaRows.*-*CrossEntropyInOne
rows-fp16      fp16      CudaRows.*-*CrossEntropyInOne
rows-fp32      fp32      CudaRows.*-*CrossEntropyInOne
rows-fp64      fp64      CudaRows.*-*CrossEntropyInOne
whole-bf16     bf16      CudaRows.CrossEntropyInOne
whole-fp32     fp32      CudaRows.CrossEntropyInOne
'
# With cuBLAS and cuDNN: tests that call cuBLAS end under racecheck, though it looks at our kernels alone, with "Internal
# Sanitizer Error". Our kernels that run here alone (GEMM epilogues, places of packed sequences) have no shared memory to race in.
with_libraries='
gemm           bf16,fp32 CudaGemm.*:CudaGemmGelu.*-*Grouped*
logits         +         CudaGemmSoftmaxStats.*
ops            +         CudaOps.*:CudaRuntimeTest.*:CudaGemmSwiglu.ALayer*
attention-long bf16      CudaAttention.Long
'

part() {  # tool, name, dtypes, tests
  local tool=$1 name=$2 log=$logs/$1-$2.log start=$SECONDS options=() dtypes=${3//,/ } code said
  local left=$((began + ${MEGATRON_SANITIZE_LIMIT:-600} - EPOCHSECONDS))
  if [[ $tool == racecheck ]]; then
    # Or each part would take every core; waiting now and then bounds what is yet to be looked at.
    options=(--racecheck-num-workers "$workers" --force-synchronization-limit 4 --kernel-name kns=megatron)
  elif [[ $tool == memcheck ]]; then
    options=(--report-api-errors no) # a test asks for more memory than there is
  elif [[ $with_libraries != *$'\n'"$name "* ]]; then
    export MEGATRON_UNWRITTEN=found
  fi
  MEGATRON_SANITIZED=${dtypes/+/all} timeout -k 5 "$((left > 1 ? left : 1))" compute-sanitizer --tool "$tool" \
    --error-exitcode 9 "${options[@]}" "$program" --gtest_filter="$4" >"$log" 2>&1
  code=$?
  said=$(grep -aE 'PASSED|SUMMARY' "$log" | sed 's/=* *//' | paste -sd ' ')
  grep -aqE 'PASSED.* [1-9][0-9]* test' "$log" || said="no test ran. $said" code=$((code ? code : 1))
  case $code in
    0) said="clean: $said" ;;
    124 | 137) said="NOT ENDED: $(grep -aE '^\[ *(RUN|OK|FAILED)' "$log" | tail -n 1)" ;;
    *) said="NOT CLEAN (status $code): $said $(grep -aE '^=+ +(Error|Warning|Invalid|Uninit|Program|Race|at )|\[  FAILED|Unknown|unrecog' \
      "$log" | sed -E 's/0x[0-9a-f]+//g' | sort | uniq -c | sort -rn | head -n 4 | cut -c 1-220 | paste -sd ';')" ;;
  esac
  printf '%-9s %-14s %4d s  %s\n' "$tool" "$name" "$((SECONDS - start))" "$said"
  [[ $code == 0 ]]
}
export -f part
export logs program with_libraries workers=$((($(nproc) + jobs - 1) / jobs))
export began=$EPOCHSECONDS

for tool in $tools; do
  while read -r name dtypes tests; do
    if [[ -n $name && $name =~ ${MEGATRON_SANITIZE_ONLY:-.} ]]; then printf '%s\0' "$tool" "$name" "$dtypes" "$tests"; fi
  done <<<"$parts$([[ $tool == racecheck ]] || echo "$with_libraries")"
done | xargs -0 -n 4 -P "$jobs" bash -c 'part "$@"' sanitize
status=$?
echo "sanitized set ($tools): $SECONDS s, $([[ $status == 0 ]] && echo clean || echo 'NOT clean'); logs in $logs"
exit "$((status != 0))"
