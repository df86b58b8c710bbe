#include "megatron/transformer/attention_heads.h"

#include <cmath>

#include "megatron/nn/sequence_batch.h"
#include "megatron/ops/index.h"
#include "megatron/parallel/context/attention.h"

namespace megatron {

AttentionHeads::AttentionHeads(int64_t layer, const ModelConfig& config, const TensorParallel& tp,
                               std::optional<double> scale, int64_t units)
    : layer(layer),
      global(config.num_attention_heads),
      scale(scale ? *scale
                  : config.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(config.kv_channels)))),
      dropout(config.attention_dropout) {
  const int64_t each = units > 0 ? global / units : 1;
  const UnitMap own = tp.units("attention: heads", global / each);
  count = each * static_cast<int64_t>(own.owned().size());
  first = own.contiguous() ? each * own.owned().front() : -1;
  require(first >= 0 || dropout == 0,
          "attention: dropout needs heads in a row, but rank {} of {} has others; use --attention-dropout 0",
          tp.rank(), tp.size());
}

ops::AttentionOptions attention_options(const AttentionHeads& heads, const SeqInfo& seq, int site) {
  ops::AttentionOptions options;
  options.batch = seq.batch;
  options.scale = heads.scale;
  options.dropout = seq.training ? heads.dropout : 0;
  options.dropout_key = dropout_key(seq, heads.layer, site);
  options.offsets = {.batch_begin = seq.batch_begin,
                     .head_begin = std::max<int64_t>(0, heads.first),
                     .global_heads = heads.global};
  return options;
}

ops::AttentionOptions self_attention_options(const AttentionHeads& heads, const SeqInfo& seq) {
  ops::AttentionOptions options = attention_options(heads, seq, 0);
  options.cu_queries = options.cu_keys = seq.cu_seqlens;
  options.max_queries = options.max_keys = seq.max_length;
  if (seq.cu_seqlens) options.offsets.row_length = seq.row_length;
  return options;
}

Tensor attend_pages(RankContext& ctx, const AttentionHeads& heads, const Tensor& q, const Tensor& keys,
                    const Tensor& values, ops::AttentionOptions options, const SeqInfo& seq) {
  const SequenceBatch& sequences = *seq.sequences;
  options.cu_queries = sequences.cu_queries;
  options.cu_keys = {};
  options.max_queries = sequences.max_queries;
  options.max_keys = sequences.max_keys;
  options.blocks = sequences.blocks;
  options.key_lengths = sequences.key_lengths;
  options.block_size = sequences.block_size;
  options.offsets = {.head_begin = heads.first, .global_heads = heads.global};
  return ops::attention(ctx, q, keys, values, options).o;
}

Tensor attend(RankContext& ctx, const AttentionHeads& heads, const Tensor& q, const Tensor& k,
              const Tensor& v, const ops::AttentionOptions& options, const SeqInfo& seq,
              const ContextParallel& context) {
  if (seq.cache) {
    const PagedCache::Pages& pages = seq.cache->pages(heads.layer);
    ops::put_rows(ctx, k, seq.sequences->slots, pages.keys);
    ops::put_rows(ctx, v, seq.sequences->slots, pages.values);
    return attend_pages(ctx, heads, q, pages.keys, pages.values, options, seq);
  }
  if (context.size() == 1) return ops::attention(ctx, q, k, v, options).o;
  return context_attention(ctx, q, k, v, options, seq.context, context, context.kind(heads.layer));
}

}  // namespace megatron
