#pragma once

#include <span>

#include "megatron/autograd/rank_context.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// Hidden-state mixing (HSM): what an MTP layer reads while it is trained. `states` [tokens, hidden] are those
// of the layers before it, the newest last. A state of k layers earlier speaks of the same target k tokens
// further on, so each token draws one of the states, uniformly, and takes it from there; where its sequence
// has ended by then, it takes the newest. Drawn by the token's place in the global batch, so no layout
// changes it. `layer`: the MTP layer's place in the model.
Tensor mix_hidden_states(RankContext& ctx, std::span<const Tensor> states, const SeqInfo& seq, int64_t layer,
                         const TensorParallel& tp);

}  // namespace megatron
