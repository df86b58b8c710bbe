#!/usr/bin/env bash
# The layer check itself: each planted fault must turn it red, with a message that tells why.
set -euo pipefail
check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/src/megatron/{base,tensor,kernels/cuda,comm,stray}

# expect WHY FILE INCLUDE: the check passes without the file and fails with it.
expect() {
  local why=$1 file=$tree/src/megatron/$2 said
  bash "$check" "$tree" base tensor kernels comm >/dev/null || { echo "fails before: $why"; exit 1; }
  printf '#include %s\n' "$3" >"$file"
  if said=$(bash "$check" "$tree" base tensor kernels comm); then echo "not found: $3 in $2" && exit 1; fi
  [[ $said == *"$why"* ]] || { echo "wanted '$why', got: $said"; exit 1; }
  rm "$file"
}

echo '#include "megatron/base/a.h"' >"$tree/src/megatron/tensor/good.h"
echo '#include <cuda_runtime.h>' >"$tree/src/megatron/kernels/cuda/good.cu"
echo '#include <nccl.h>' >"$tree/src/megatron/comm/nccl_group.cpp"
echo '#include <nlohmann/json.hpp>' >"$tree/src/megatron/base/good.cpp"
expect 'base stands before tensor' base/a.cpp '"megatron/tensor/good.h"'
expect 'there is no layer wrong' base/a.cpp '"megatron/wrong/a.h"'
expect 'write it as' tensor/a.cpp '"../comm/a.h"'
expect 'CUDA headers belong in' tensor/a.cpp '<cuda_runtime.h>'
expect 'CUDA headers belong in' comm/threads.cpp '<nccl.h>'
expect 'not in a header' tensor/a.h '<yaml-cpp/yaml.h>'
expect 'base/good.cpp already includes' tensor/a.cpp '<nlohmann/json.hpp>'
expect 'is no layer of CMakeLists.txt' stray/a.cpp '<vector>'
