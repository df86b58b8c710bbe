#include "megatron/models/model_sequences.h"

#include <cmath>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"

namespace megatron {
namespace {

int64_t rotated_channels(const ModelConfig& config) {
  if (config.multi_latent_attention) return config.qk_pos_emb_head_dim;
  return static_cast<int64_t>(static_cast<double>(config.kv_channels) * config.rotary_percent);
}

ops::RopeFrequencies rotary_frequencies(const ModelConfig& config, int64_t length) {
  ops::RopeScaling scaling;
  if (config.multi_latent_attention) {
    if (config.rope_type == RopeType::rope)
      return ops::rope_frequencies(rotated_channels(config), config.rotary_base);
    scaling.kind = ops::RopeScalingKind::Yarn;
    scaling.factor = config.rotary_scaling_factor;
    scaling.original_max_position = config.original_max_position_embeddings;
    scaling.beta_fast = config.beta_fast;
    scaling.beta_slow = config.beta_slow;
    scaling.mscale = config.mscale;
    scaling.mscale_all_dim = config.mscale_all_dim;
  } else if (config.position_embedding_type == PositionEmbedding::yarn) {
    scaling.kind = ops::RopeScalingKind::Yarn;
    scaling.factor = config.yarn_rotary_scaling_factor;
    scaling.original_max_position = config.yarn_original_max_position_embeddings;
    scaling.beta_fast = config.yarn_beta_fast;
    scaling.beta_slow = config.yarn_beta_slow;
    scaling.truncate = config.yarn_correction_range_round_to_int;
    scaling.mscale = config.yarn_mscale.value_or(0);
    scaling.mscale_all_dim = config.yarn_mscale_all_dim.value_or(0);
    scaling.attention_factor = config.yarn_attention_factor;
  } else if (!config.longrope_short_factor.empty()) {
    scaling.kind = ops::RopeScalingKind::LongRope;
    scaling.factor = config.longrope_scaling_factor;
    scaling.original_max_position = config.longrope_original_max_position_embeddings;
    scaling.attention_factor = config.longrope_attention_factor;
    scaling.short_factor = config.longrope_short_factor;
    scaling.long_factor = config.longrope_long_factor;
  } else if (config.dynamic_rope_factor) {
    scaling.kind = ops::RopeScalingKind::Dynamic;
    scaling.factor = *config.dynamic_rope_factor;
    scaling.max_position = config.max_position_embeddings;
  } else if (config.rope_scaling) {
    scaling.kind = ops::RopeScalingKind::Llama3;
    scaling.factor = config.rope_scaling_factor;
    scaling.low_freq_factor = config.rope_scaling_low_freq_factor;
    scaling.high_freq_factor = config.rope_scaling_high_freq_factor;
    scaling.original_max_position = config.rope_scaling_original_max_position_embeddings;
  } else if (config.seq_len_interpolation_factor) {
    scaling.kind = ops::RopeScalingKind::Linear;
    scaling.factor = *config.seq_len_interpolation_factor;
  }
  return ops::rope_frequencies(rotated_channels(config), config.rotary_base, scaling, length);
}

// 1 + β ln(1 + ⌊position / original length⌋) of every token.
Tensor query_scale(RankContext& ctx, const ModelConfig& config, const std::vector<int64_t>& positions,
                   DType dtype) {
  std::vector<double> factors;
  for (int64_t position : positions)
    factors.push_back(1 + *config.query_scaling_beta *
                              std::log1p(position / config.yarn_original_max_position_embeddings));
  auto count = static_cast<int64_t>(factors.size());
  return ops::cast(ctx, ctx.from_vector(factors, {count, 1, 1}), dtype);
}

// Tokens of text have one position in all rows of multimodal ones.
bool has_rotary_positions(const ModelConfig& config) {
  const PositionEmbedding type = config.position_embedding_type;
  // Latent attention turns keys in any case; learned positions are then added to embeddings as well.
  return type == PositionEmbedding::rope || type == PositionEmbedding::yarn ||
         type == PositionEmbedding::mrope || config.multi_latent_attention;
}

// Where frequencies depend on a sequence's length, each run of tokens with one length has its own.
ops::Rotation step_rotation(RankContext& ctx, const SequenceBatch& batch, const ModelConfig& config,
                            DType dtype, const StepFrequencies& frequencies) {
  if (!rope_depends_on_length(config)) return ops::rope_tables(ctx, batch.positions, frequencies.all);
  std::vector<Tensor> cos, sin;
  const std::vector<int64_t>& lengths = batch.rope_lengths;
  for (size_t begin = 0, end = 0; begin < lengths.size(); begin = end) {
    while (end < lengths.size() && lengths[end] == lengths[begin]) ++end;
    const Tensor positions = batch.positions.slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(end));
    const ops::Rotation part =
        ops::rope_tables(ctx, positions, rotary_frequencies(config, lengths[begin]), dtype);
    cos.push_back(part.cos);
    sin.push_back(part.sin);
  }
  return {ops::concat(ctx, cos, 0), ops::concat(ctx, sin, 0)};
}

ops::DeviceFrequencies local_frequencies(RankContext& ctx, const ModelConfig& config, DType dtype) {
  if (!config.rotary_base_local) return {};
  return ops::to_device(ctx, ops::rope_frequencies(rotated_channels(config), *config.rotary_base_local),
                        dtype);
}

// Tables of layers with a window, and of queries that grow with their position.
void add_position_tables(RankContext& ctx, const ModelConfig& config, const std::vector<int64_t>& positions,
                         DType dtype, const ops::DeviceFrequencies& local_frequencies, SeqInfo& seq) {
  if (config.rotary_base_local) {
    const ops::Rotation local = ops::rope_tables(ctx, seq.positions, local_frequencies);
    seq.local_cos = local.cos;
    seq.local_sin = local.sin;
  }
  if (config.query_scaling_beta) seq.query_scale = query_scale(ctx, config, positions, dtype);
}

}  // namespace

bool rope_depends_on_length(const ModelConfig& config) {
  return config.dynamic_rope_factor.has_value() || !config.longrope_short_factor.empty();
}

SeqInfo model_sequences(RankContext& ctx, const TokenRows& rows, const ModelConfig& config,
                        const ContextParallel& context, DType dtype) {
  SeqInfo seq = held_sequences(ctx, rows, context);
  if (has_rotary_positions(config)) {
    const ops::Rotation rotation =
        ops::rope_tables(ctx, seq.positions, rotary_frequencies(config, rows.first + rows.length), dtype);
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  if (config.attends_sparsely() && config.dsa_indexer_topk_freq > 1)
    seq.chosen_keys = std::make_shared<std::map<int64_t, Tensor>>();
  add_position_tables(ctx, config, held_positions(rows, context), dtype,
                      local_frequencies(ctx, config, dtype), seq);
  return seq;
}

StepFrequencies step_frequencies(RankContext& ctx, const ModelConfig& config, DType dtype) {
  StepFrequencies frequencies;
  if (has_rotary_positions(config) && !rope_depends_on_length(config))
    frequencies.all = ops::to_device(ctx, rotary_frequencies(config, 0), dtype);
  frequencies.local = local_frequencies(ctx, config, dtype);
  return frequencies;
}

SeqInfo model_sequences(RankContext& ctx, const SequenceBatch& batch, const ModelConfig& config, DType dtype,
                        const StepFrequencies* given) {
  const StepFrequencies frequencies = given ? *given : step_frequencies(ctx, config, dtype);
  SeqInfo seq;
  seq.training = false;
  seq.length = seq.row_length = batch.ids.size(0);
  seq.positions = batch.positions;
  seq.cu_seqlens = batch.cu_queries;
  seq.max_length = batch.max_queries;
  seq.sequences = &batch;
  if (has_rotary_positions(config)) {
    const ops::Rotation rotation = step_rotation(ctx, batch, config, dtype, frequencies);
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  add_position_tables(ctx, config, batch.host_positions, dtype, frequencies.local, seq);
  return seq;
}

}  // namespace megatron
