#!/usr/bin/env bash
# layers.sh ROOT LAYER... : checks the includes under ROOT/src/megatron, the layers being given in their order.
#  - a layer includes only itself and layers before it, always as "megatron/<layer>/<file>"
#  - CUDA's headers stay in device, kernels/cuda and comm/nccl*
#  - headers that are slow to compile stay out of headers, and each in one source file
set -euo pipefail
root=$1
shift
[[ $# -gt 0 ]] || { echo "layers.sh: no layers were given" >&2; exit 2; }

cd "$root/src/megatron"
find . -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print0 |
  LC_ALL=C sort -z | xargs -0 -r grep -nHE '^[[:space:]]*#[[:space:]]*include' |
  awk -v layers="$*" '
    function bad(why) { print "src/megatron/" file ":" line ": " name ": " why; ++faults }
    BEGIN {
      count = split(layers, order, " ")
      for (i = 1; i <= count; ++i) level[order[i]] = i
      heavy["nlohmann/"]; heavy["yaml-cpp/"]; heavy["dnnl"]; heavy["oneapi/dnnl"]; heavy["cudnn_frontend"]
    }
    {
      split($0, place, ":")
      file = substr(place[1], 3); line = place[2]
      if (!match($0, /include[[:space:]]*[<"][^>"]*/)) next
      name = substr($0, RSTART, RLENGTH); quoted = name ~ /"/; sub(/^[^<"]*[<"]/, "", name)
      own = file; sub(/\/.*/, "", own)
      if (!(own in level)) { bad("the folder " own " is no layer of CMakeLists.txt"); next }

      if (name ~ /^megatron\//) {
        other = name; sub(/^megatron\//, "", other); sub(/\/.*/, "", other)
        if (!(other in level)) bad("there is no layer " other)
        else if (level[other] > level[own]) bad(own " stands before " other " and may not include it")
      } else if (quoted) bad("write it as \"megatron/<layer>/<file>\", or with <> where it is not ours")

      if (name ~ /^(cuda|cublas|curand|cudnn|nccl|nvtx|nvToolsExt|nvrtc|cub\/|thrust\/|cute\/|cutlass\/|cooperative_groups|mma\.h)/ &&
          file !~ /^(device\/|kernels\/cuda\/|comm\/nccl)/)
        bad("CUDA headers belong in device, kernels/cuda and comm/nccl")

      for (h in heavy) if (index(name, h) == 1) {
        if (file ~ /\.(h|cuh)$/) bad("slow to compile: not in a header")
        else if (h in first && first[h] != file) bad("slow to compile: " first[h] " already includes " h)
        else first[h] = file
      }
    }
    END { if (faults) { print faults " includes break the layers"; exit 1 } print NR " includes keep to the layers" }'
