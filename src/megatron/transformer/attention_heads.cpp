#include "megatron/transformer/attention_heads.h"

#include <cmath>

#include "megatron/nn/kv_cache.h"
#include "megatron/parallel/context/attention.h"

namespace megatron {

AttentionHeads::AttentionHeads(int64_t layer, const ModelConfig& config, const TensorParallel& tp,
                               std::optional<double> scale)
    : layer(layer),
      count(config.num_attention_heads / tp.size()),
      first(count * tp.rank()),
      global(config.num_attention_heads),
      scale(scale ? *scale
                  : config.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(config.kv_channels)))),
      dropout(config.attention_dropout) {
  require(count * tp.size() == global, "attention: {} heads cannot be split over {} ranks", global,
          tp.size());
}

ops::AttentionOptions attention_options(const AttentionHeads& heads, const SeqInfo& seq, int site) {
  ops::AttentionOptions options;
  options.batch = seq.batch;
  options.scale = heads.scale;
  options.dropout = seq.training ? heads.dropout : 0;
  options.dropout_key = dropout_key(seq, heads.layer, site);
  options.offsets = {.batch_begin = seq.batch_begin, .head_begin = heads.first, .global_heads = heads.global};
  return options;
}

ops::AttentionOptions self_attention_options(const AttentionHeads& heads, const SeqInfo& seq) {
  ops::AttentionOptions options = attention_options(heads, seq, 0);
  options.cu_queries = options.cu_keys = seq.cu_seqlens;
  options.max_queries = options.max_keys = seq.max_length;
  if (seq.cu_seqlens) options.offsets.row_length = seq.row_length;
  return options;
}

Tensor attend(RankContext& ctx, const AttentionHeads& heads, const Tensor& q, const Tensor& k,
              const Tensor& v, const ops::AttentionOptions& options, const SeqInfo& seq,
              const ContextParallel& context) {
  KvCache::Pair seen{k, v};
  if (seq.cache) seen = seq.cache->append(ctx, heads.layer, seen);
  if (context.size() == 1) return ops::attention(ctx, q, seen.keys, seen.values, options).o;
  return context_attention(ctx, q, seen.keys, seen.values, options, seq.context, context,
                           context.kind(heads.layer));
}

}  // namespace megatron
