#pragma once

#include <string_view>

#include "megatron/kernels/attention.h"

namespace megatron {

// Whether cuDNN's attention takes a call on a GPU, and its scratch memory: decided by shapes alone, so that
// a plan made without a GPU has it too.
struct CudnnSupport {
  std::string_view refused;  // why cuDNN is not used; "": it is
  bool takes() const { return refused.empty(); }
  // Maximum number of sequences and lengths that a graph is built for.
  int64_t sequences = 0, queries = 0, keys = 0;
};
CudnnSupport cudnn_support(const AttentionArgs& args);
CudnnSupport cudnn_support(const AttentionBackwardArgs& args);

// Bytes of the backward pass (the forward pass needs none worth counting); 0 where it is not taken.
size_t cudnn_scratch_bytes(const AttentionBackwardArgs& args);

}  // namespace megatron
