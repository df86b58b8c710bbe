#!/usr/bin/env bash
# losses.sh FOLDER [SEED…]: do fp8 and bf16 learn the same? For each seed (0 by default; it makes the weights and the order of the
# text), a Llama of the 124M shape is trained for 500 steps on a GPU in bf16, in bf16 once more with sums in another order, and by each
# fp8 recipe; the table compares each with the first.
#   PYTHON    a Python with PyTorch (python3), which makes weights and text
#   MEGATRON  the program (./megatron of the clone)
#   STEPS     steps (500)
#   BATCH     sequences of 1024 bytes a step (8)
#   SCHEDULE  of the learning rate: constant, or cosine, with a tenth of the steps to warm up
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
megatron=${MEGATRON:-$here/../../megatron}
export STEPS=${STEPS:-500} BATCH=${BATCH:-8}
schedule="--min-lr 3e-4 --lr-decay-style constant"
[[ ${SCHEDULE:-constant} == cosine ]] && schedule="--min-lr 3e-5 --lr-decay-style cosine --lr-warmup-iters $((STEPS / 10))"
folder=${1:?losses.sh FOLDER [SEED…]}
shift
(($#)) || set -- 0
declare -A recipe=([bf16]="" [bf16-again]="--deterministic-mode"
  [tensorwise]="--fp8-format hybrid --fp8-recipe tensorwise"
  [delayed]="--fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 16 --fp8-amax-compute-algo max"
  [blockwise]="--fp8-format e4m3 --fp8-recipe blockwise")
for seed in "$@"; do
  at=$folder/$seed
  SEED=$seed "$python" "$here/losses.py" prepare "$at"
  for name in bf16 bf16-again tensorwise delayed blockwise; do
    rm -f "$at/$name.jsonl"
    # shellcheck disable=SC2086
    "$megatron" pretrain --hf "$at" --replay "$at/text.safetensors:tokens" --device cuda --bf16 ${recipe[$name]} \
      --micro-batch-size "$BATCH" --global-batch-size "$BATCH" --train-iters "$STEPS" --lr 3e-4 $schedule \
      --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --log-interval 100 \
      --metrics "$at/$name.jsonl" >"$at/$name.log" 2>&1 || { tail -5 "$at/$name.log"; exit 1; }
  done
done
"$python" "$here/losses.py" table "$folder" "$@"
