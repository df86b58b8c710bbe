#pragma once

#include <string_view>

#include "megatron/kernels/attention.h"

namespace megatron {

// What cuDNN's fused attention is asked for on a GPU, and the scratch memory that it then needs: told by
// shapes alone, so that a plan made without a GPU knows it.
struct FusedAttention {
  std::string_view refused;  // why cuDNN is not asked, in words; "": it is
  bool takes() const { return refused.empty(); }
  // Graphs are made for so many sequences of these lengths at most.
  int64_t places = 0, queries = 0, keys = 0;
};
FusedAttention fused_attention(const AttentionArgs& args);
FusedAttention fused_attention(const AttentionBackwardArgs& args);

// Bytes of the backward pass (the forward pass needs none worth counting); 0 where it is not taken.
size_t fused_attention_scratch(const AttentionBackwardArgs& args);

}  // namespace megatron
