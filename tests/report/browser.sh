#!/usr/bin/env bash
# browser.sh MEGATRON CHROMIUM: opens the pages of runs, of a plan and of a step's memory without a screen. A script
# error, a chart that was not drawn, or text that runs out of a narrow window fails.
set -euo pipefail
megatron=$1 chromium=$2
[[ -x $chromium ]] || { echo "there is no Chromium"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/a" "$folder/b"
for run in a b; do
  awk -v run=$run 'BEGIN {
    for (i = 1; i <= 3000; ++i)
      printf "{\"iteration\":%d,\"lm_loss\":%.5f,\"load_balancing_loss\":1.1,\"grad_norm\":%.4f,\"learning_rate\":0.0003,\"iteration_ms\":%d,\"data_wait_ms\":0.5,\"tokens_per_second\":20000,\"model_tflops\":500,\"memory_gib\":60,\"reserved_gib\":61%s%s}\n",
        i, 2 + 9 / (1 + i / 100) + (run == "b") / 4, 1 + 1 / i, 400 + i % 7, i % 900 ? "" : ",\"skipped\":true", i % 10 ? "" : ",\"expert_load\":[1,2,0.5,1]"
  }' > "$folder/$run/metrics.jsonl"
done
"$megatron" report "$folder/a" --gpu H100 --out "$folder/one.html" > /dev/null
"$megatron" report "$folder/a" "$folder/b" --out "$folder/two.html" > /dev/null

model=(--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 --vocab-size 64
  --micro-batch-size 1 --global-batch-size 4 --train-iters 3 --lr 1e-3 --mock-data --device cpu --ranks 2 -pp 2)
"$megatron" plan "${model[@]}" --report "$folder/plan.html" > /dev/null
"$megatron" pretrain "${model[@]}" --profile --record-memory-history --profile-step-start 1 --profile-step-end 3 \
  --tensorboard-dir "$folder" --memory-snapshot-path memory.html > /dev/null

# dump PAGE WIDTH: the document after its script ran, to $folder/dom; what it said to $folder/log. A page that is too
# wide for the window is asked to say so in its title.
dump() {
  sed 's|</body>|<script>document.title = "overflow " + Math.max(0, document.documentElement.scrollWidth - innerWidth);</script></body>|' \
    "$1" > "$folder/page.html"
  "$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$folder/profile" --window-size="$2,900" \
    --virtual-time-budget=3000 --enable-logging=stderr --dump-dom "file://$folder/page.html" > "$folder/dom" 2> "$folder/log"
}
# check PAGE CURVES CHARTS: at both widths no script error, at least so many of each, and nothing that is too wide.
check() {
  for width in 1280 400; do
    dump "$folder/$1.html" $width
    if grep -E 'CONSOLE.*(Uncaught|Error)' "$folder/log"; then echo "$1 at $width: script error"; exit 1; fi
    curves=$(grep -o 'class="curve"' "$folder/dom" | wc -l || true)  # a plan has none
    charts=$(grep -o '<svg role="img"' "$folder/dom" | wc -l)
    (( curves >= $2 && charts >= $3 )) || { echo "$1 at $width: $curves curves in $charts charts"; exit 1; }
    grep -q '<title>overflow 0</title>' "$folder/dom" || { echo "$1 at $width: $(grep -o '<title>[^<]*' "$folder/dom" | head -1)"; exit 1; }
  done
}
check one 11 10
check two 11 10
check plan 0 4
check memory 6 2

# A logarithmic chart of values that lie near each other has marks, too.
for ((i = 1; i <= 9; ++i)); do echo "{\"iteration\":$i,\"lm_loss\":2.5,\"grad_norm\":0.6$i}"; done > "$folder/narrow.jsonl"
"$megatron" report "$folder/narrow.jsonl" --out "$folder/narrow.html" > /dev/null
dump "$folder/narrow.html" 1280
grep -q '>0\.7<' "$folder/dom" || { echo "narrow: the gradient norm has no marks"; exit 1; }

# A planted error must be seen.
sed 's|const page = JSON|const page = nothing.JSON|' "$folder/one.html" > "$folder/spoiled.html"
dump "$folder/spoiled.html" 1280
grep -qE 'CONSOLE.*(Uncaught|Error)' "$folder/log" || { echo "a planted script error was not seen"; exit 1; }
echo "pages are drawn at both widths without script errors"
