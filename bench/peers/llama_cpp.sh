#!/usr/bin/env bash
# llama_cpp.sh MEGATRON LLAMA_CPP PYTHON [ROUNDS]: decoding of gpt-124m on the CPU beside llama.cpp, in turn, in fp32, bf16 and
# int8 (Q8_0 there). LLAMA_CPP is a source tree with llama-bench in build/bin; PYTHON has numpy. Figures are tokens/s of one sequence
# behind a prompt of 32 tokens, 64 tokens an answer; the last column is the share of the speed at which memory can be read.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
megatron=$1 peer=$2 python=$3 rounds=${4:-5}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
threads=$(nproc)
for precision in f32 bf16 q8_0; do
  "$python" "$here/llama_gguf.py" "$peer" "$folder/$precision.gguf" --precision $precision
done
for _ in $(seq "$rounds"); do
  for precision in f32 bf16 q8_0; do
    case $precision in
      f32) flags=(--precision fp32) ;;
      bf16) flags=(--precision bf16) ;;
      *) flags=(--precision fp32 --quantization int8) ;;
    esac
    "$megatron" bench generate gpt-124m --device cpu "${flags[@]}" --json |
      "$python" -c "import json,sys; r=json.load(sys.stdin); print('ours ', '$precision', round(r['tokens_per_second'],1), round(1e3/r['best_step_ms'],1), round(r['percent_of_read'],1))"
    "$peer/build/bin/llama-bench" -m "$folder/$precision.gguf" -t "$threads" -p 0 -n 64 -d 32 -r 1 -ngl 0 -o json 2>/dev/null |
      "$python" -c "import json,sys; r=json.load(sys.stdin)[-1]; print('llama', '$precision', round(r['avg_ts'],1))"
  done
done | tee "$folder/table" >&2
"$python" - "$folder/table" <<'EOF'
import collections, statistics, sys
rows = collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, precision, speed, *_ = line.split()
    rows[precision, who].append(float(speed))
for precision in ("f32", "bf16", "q8_0"):
    ours, peer = (statistics.median(rows[precision, who]) for who in ("ours", "llama"))
    print(f"{precision}: {ours:.1f} tokens/s, llama.cpp {peer:.1f}, ratio {ours / peer:.2f}")
EOF
