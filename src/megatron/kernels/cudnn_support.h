#pragma once

#include <string_view>

#include "megatron/kernels/attention.h"

namespace megatron {

// What cuDNN's fused attention is asked for on a GPU, and the scratch memory that it then needs: told by
// shapes alone, so that a plan made without a GPU knows it.
struct CudnnSupport {
  std::string_view refused;  // why cuDNN is not asked, in words; "": it is
  bool takes() const { return refused.empty(); }
  // Graphs are made for so many sequences of these lengths at most.
  int64_t sequences = 0, queries = 0, keys = 0;
};
CudnnSupport cudnn_support(const AttentionArgs& args);
CudnnSupport cudnn_support(const AttentionBackwardArgs& args);

// Bytes of the backward pass (the forward pass needs none worth counting); 0 where it is not taken.
size_t cudnn_scratch_bytes(const AttentionBackwardArgs& args);

}  // namespace megatron
