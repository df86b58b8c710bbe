#!/bin/bash
# cases.sh PYTHON MEGATRON GOLDEN_TOKENIZERS STAGE [run.py's options]: Megatron-LM's own configurations, with small files.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
python=$1 megatron=$2 golden=$3 stage=$4
shift 4
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
"$python" "$here/make_files.py" "$files" "$golden" 11
"$python" "$here/run.py" "$here/cases.json" --megatron "$megatron" --stage "$stage" --files "$files" "$@"
