#!/usr/bin/env bash
# compare.sh [options of `megatron bench ops`]: runs `megatron bench ops` and its PyTorch counterpart in turn, ROUNDS
# times (3), and prints the shortest time of each row with PyTorch's time over ours: above 1, ours is the faster.
#   PYTHON    a Python with PyTorch (python3)
#   MEGATRON  the program (./megatron of the clone)
#   PREFIX    goes before both commands, such as "nice -n -10" on a busy machine
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
megatron=${MEGATRON:-$here/../../megatron}
"$python" -c 'import torch' 2>/dev/null || {
  echo "compare.sh: PyTorch is not installed for $python; name a Python that has it: PYTHON=... $0" >&2
  exit 1
}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for ((round = 1; round <= ${ROUNDS:-3}; ++round)); do
  ${PREFIX:-} "$megatron" bench ops --json "$@" > "$results/ours.$round.json"
  ${PREFIX:-} "$python" "$here/ops.py" "$@" > "$results/torch.$round.json"
done
exec "$python" "$here/ratios.py" "$results"/ours.*.json -- "$results"/torch.*.json
