#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/seq_info.h"
#include "megatron/ops/attention.h"
#include "megatron/parallel/model_parallel.h"

namespace megatron {

// The heads of a layer's attention that a rank holds, whatever makes their queries, keys and values.
struct AttentionHeads {
  // `units`: of which a rank has whole ones, query groups say; 0: heads. `scale`: of scores, where it is not
  // the configuration's or 1/√head_dim.
  AttentionHeads(int64_t layer, const ModelConfig& config, const TensorParallel& tp,
                 std::optional<double> scale = {}, int64_t units = 0);

  int64_t layer;
  int64_t count, first, global;  // of this rank; the first of them, -1 if not in a row; of all ranks
  double scale, dropout;
};

// How these heads see sequences. `site`: the place of this attention's dropout in the layer.
ops::AttentionOptions attention_options(const AttentionHeads& heads, const SeqInfo& seq, int site);

// The same for sequences that see themselves, which may be packed.
ops::AttentionOptions self_attention_options(const AttentionHeads& heads, const SeqInfo& seq);

// Attention of the tokens of a decoder's step to what its cache holds of their sequences, theirs included.
Tensor attend_pages(RankContext& ctx, const AttentionHeads& heads, const Tensor& q, const Tensor& keys,
                    const Tensor& values, ops::AttentionOptions options, const SeqInfo& seq);

// Attention of sequences with themselves: behind what a decoder has seen, over all ranks that share them.
Tensor attend(RankContext& ctx, const AttentionHeads& heads, const Tensor& q, const Tensor& k,
              const Tensor& v, const ops::AttentionOptions& options, const SeqInfo& seq,
              const ContextParallel& context);

}  // namespace megatron
