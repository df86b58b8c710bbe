#!/usr/bin/env bash
# train.sh [case …]: trains each case on a GPU with `megatron bench train`, with its PyTorch counterpart, and with ours again, and
# prints speed and memory of both with the ratios. Cases: llama-8b-16 gpt-1.7b llama-1b gpt-124m gpt2-124m, all of them by default,
# and qwen2.5-0.5b qwen2.5-1.5b, with bf16 moments and 16 micro-batches on both sides.
#   PYTHON    a Python with PyTorch (python3)
#   MEGATRON  the program (./megatron of the clone)
#   STEPS     measured steps (15)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
megatron=${MEGATRON:-$here/../../megatron}
steps=${STEPS:-15}
declare -A peer=([llama-8b-16]=llama8b_16l:4:4096:1 [gpt-1.7b]=mcore1.7b:4:4096:1 [llama-1b]=llama1b:4:4096:1
  [gpt-124m]=gpt124m:32:1024:1 [gpt2-124m]=gpt2_124m:32:1024:1
  [qwen2.5-0.5b]=qwen2.5_0.5b:32:1024:16 [qwen2.5-1.5b]=qwen2.5_1.5b:32:1024:16)
(($#)) || set -- llama-8b-16 gpt-1.7b llama-1b gpt-124m gpt2-124m
for case in "$@"; do
  [[ -n ${peer[$case]:-} ]] || { echo "train.sh: $case has no counterpart; name one of ${!peer[*]}" >&2; exit 2; }
  options=() moments=fp32
  [[ $case == qwen* ]] && options=(--micro-batches 16) moments=bf16
  ours() {
    "$megatron" bench train "$case" --device cuda --steps "$steps" --moments "$moments" "${options[@]}" --json 2>/dev/null
  }
  first=$(ours)
  theirs=$("$python" "$here/torch_llama.py" --what train --compile full --moments "$moments" --steps "$steps" --cases "${peer[$case]}" |
    grep '^{' | tail -1)
  "$python" - "$first" "$theirs" "$(ours)" <<'END'
import json, sys
first, peer, second = map(json.loads, sys.argv[1:])
for ours in (first, second):
    print(f"{ours['case']:12} {ours['tokens_per_second']:9.0f} tokens/s against {peer['tok_s']:9.0f}: "
          f"{ours['tokens_per_second'] / peer['tok_s']:.3f}   {ours['memory_gib']:6.2f} GiB against {peer['peak_gib']:6.2f}: "
          f"{ours['memory_gib'] / peer['peak_gib']:.2f}   {ours['model_tflops']:.0f} model TFLOP/s, "
          f"first step after {ours['first_step_seconds']:.1f} s")
END
done
