#!/usr/bin/env bash
# lm_eval.sh URL MODEL [TASKS] [LIMIT]: runs tasks of lm-eval (local-completions: prompts as tokens, echo with log-probabilities)
# against a server that is running. MEGATRON_CLIENT_PYTHON names a Python with lm-eval[api]; TOKENIZER a folder of the model's
# tokenizer, by which lm-eval makes the tokens. Without TASKS those of tests/clients/lm_eval run, which need no network.
set -euo pipefail
url=${1:?usage: lm_eval.sh URL MODEL [TASKS] [LIMIT]} model=${2:?the name of the model}
python=${MEGATRON_CLIENT_PYTHON:-python3}
"$python" -c 'import lm_eval' 2>/dev/null || { echo "the package lm-eval is not installed"; exit 77; }
arguments="model=$model,base_url=$url/v1/completions,num_concurrent=8,max_retries=1,tokenized_requests=True,max_length=${MAX_LENGTH:-2048}"
[[ -z ${TOKENIZER-} ]] || arguments+=",tokenizer=$TOKENIZER"
cd "$(dirname "$(readlink -f "$0")")/lm_eval"
exec "$python" -m lm_eval --model local-completions --model_args "$arguments" --include_path . \
  --tasks "${3:-local_choices,local_text}" --limit "${4:-100}"
