#!/usr/bin/env bash
# nonuniform.sh PROGRAM [ROUNDS]: what a step costs where replicas have unequal tensor-parallel sizes, beside one of equal sizes, on
# one GPU with eight ranks as threads (tp 4, dp 2; docs/resilience.md). All ranks share the GPU and the batch is the same, so that
# the ratio is the cost of folding, unfolding and of less even GEMMs. Two layers of the NTP paper's prototype: hidden size 6144,
# sequences of 4096. The table, medians of all steps but the first four in ROUNDS (2) turns, comes last.
#   MEGATRON_ARGUMENTS  further or other settings, such as "--hidden-size 64 --seq-length 64 --device cpu" to try it
set -uo pipefail
program=$(readlink -f "${1:?nonuniform.sh PROGRAM [ROUNDS]}")
rounds=${2:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MEGATRON_CACHE=
read -ra further <<<"${MEGATRON_ARGUMENTS:-}"
model=(--ranks 8 -tp 4 --num-layers 2 --hidden-size 6144 --num-attention-heads 48 --seq-length 4096 --max-position-embeddings 4096
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0
  model.vocab_size=32000 --bf16 --lr 1e-4 --mock-data --micro-batch-size 1 --global-batch-size 8 --train-iters 12 --log-interval 1
  --sequence-parallel "${further[@]}")
layouts=('4 4' '4 3' '4 2')
slots=('' 1:3 '1:2,3')
failed=0
for ((round = 0; round < rounds; ++round)); do
  for optimizer in local distributed; do
    for i in 0 1 2; do
      arguments=()
      [[ -n ${slots[i]} ]] && arguments+=(--non-active-ranks "${slots[i]}")
      [[ $optimizer == distributed ]] && arguments+=(--use-distributed-optimizer)
      rm -f "$work/metrics"
      "$program" pretrain "${model[@]}" "${arguments[@]}" --metrics "$work/metrics" >"$work/out" 2>"$work/err" || {
        echo "${layouts[i]}, $optimizer: ended with $?"
        tail -5 "$work/err"
        failed=1
        continue
      }
      tail -n +5 "$work/metrics" | grep -oE '"iteration_ms":[0-9.e+-]+' | cut -d: -f2 >>"$work/$optimizer.$i"
    done
  done
done
printf '%-12s %-12s %10s %9s\n' optimizer 'tp of dp' 'step, ms' overhead
for optimizer in local distributed; do
  for i in 0 1 2; do
    [[ -s $work/$optimizer.$i ]] || continue
    median=$(sort -g "$work/$optimizer.$i" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}')
    ((i == 0)) && whole=$median
    awk -v o="$optimizer" -v l="${layouts[i]}" -v m="$median" -v w="${whole:-$median}" \
      'BEGIN {printf "%-12s %-12s %10.2f %+8.1f %%\n", o, l, m, 100 * (m / w - 1)}'
  done
done
exit "$failed"
