#include "megatron/training/plan/theoretical_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

// Parameters by how they are spread: over tensor ranks, on every rank whole, over expert ranks.
struct SpreadParameters {
  double sharded = 0, replicated = 0, expert = 0;
};

// Vectors of a norm: weight, and bias where it has one.
double norm_vectors(const ModelConfig& model) {
  return model.normalization == Normalization::rms_norm ? 1 : 2;
}

double attention_parameters(const ModelConfig& model) {
  const double hidden = real(model.hidden_size), heads = real(model.num_attention_heads);
  if (!model.multi_latent_attention) {
    const double groups = model.num_query_groups ? real(model.num_query_groups) : heads;
    return 2 * hidden * real(model.kv_channels) * (heads + groups);
  }
  const double norm = norm_vectors(model), rotated = real(model.qk_pos_emb_head_dim),
               query = real(model.qk_head_dim) + rotated, value = real(model.v_head_dim);
  const double queries =
      model.q_lora_rank ? real(*model.q_lora_rank) * (hidden + heads * query + norm) : hidden * heads * query;
  return queries + real(model.kv_lora_rank) * (hidden + heads * (real(model.qk_head_dim) + value) + norm) +
         hidden * rotated + heads * value * hidden;
}

SpreadParameters of_layers(const ModelConfig& model, int64_t dense, int64_t experts) {
  const double hidden = real(model.hidden_size), latent = real(model.moe_latent_size),
               number = real(model.num_moe_experts), matrices = model.gated_linear_unit ? 3 : 2,
               expert_width =
                   real(model.moe_ffn_hidden_size ? model.moe_ffn_hidden_size : model.ffn_hidden_size),
               shared_width = real(model.moe_shared_expert_intermediate_size),
               attention = attention_parameters(model);
  double beside = 2 * hidden * latent + hidden * number;  // latent projections and router
  if (model.add_bias_linear) beside += number;
  if (model.moe_shared_expert_gate && shared_width > 0) beside += hidden;
  return {.sharded = (attention + matrices * hidden * real(model.ffn_hidden_size)) * real(dense) +
                     (attention + matrices * hidden * shared_width) * real(experts),
          .replicated = 2 * hidden * norm_vectors(model) * real(dense + experts) + beside * real(experts),
          .expert = matrices * (latent > 0 ? latent : hidden) * expert_width * number * real(experts)};
}

// How much of all layers' activations the first stage holds at most, as a part of what it would with one
// micro-batch a stage.
double pipeline_factor(const Config& config, const ParallelSizes& sizes,
                       std::optional<int64_t> microbatches) {
  const double stages = sizes.pp;
  if (const int64_t chunks = config.parallel.virtual_pipeline_model_parallel_size; chunks > 0)
    return 1 + (stages - 1) / (stages * real(chunks));
  return microbatches && sizes.pp > 1 ? std::min(1.0, real(*microbatches) / stages) : 1;
}

double micro_batch_tokens(const Config& config) {
  return real(config.model.seq_length) * real(config.train.micro_batch_size);
}

// Tokens, positions and the embedding's dropout of the micro-batches that are in flight.
double embedding_bytes(const Config& config, const ParallelSizes& sizes) {
  return micro_batch_tokens(config) * (8 + real(config.model.hidden_size)) * sizes.pp;
}

double padded_vocabulary(const Config& config, const ParallelSizes& sizes) {
  return real(padded_vocab_size(config.model, sizes.tp));
}

}  // namespace

std::string TheoreticalMemory::line() const {
  constexpr double mib = 1 << 20;
  return fmt::format(
      "Theoretical memory footprints: weight and optimizer={:.2f} MB, activation={:.2f} MB, total={:.2f} "
      "MB\n",
      weights_and_optimizer / mib, activations / mib, (weights_and_optimizer + activations) / mib);
}

double theoretical_weight_bytes(const Config& config, const ParallelSizes& sizes) {
  const ModelConfig& model = config.model;
  int64_t experts = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) experts += has_experts(model, layer) ? 1 : 0;
  const int64_t further = model.mtp_num_layers;
  const bool further_have_experts = has_experts(model, model.num_layers - 1);
  SpreadParameters layers = of_layers(model, model.num_layers - experts, experts);
  const SpreadParameters mtp =
      of_layers(model, further_have_experts ? 0 : further, further_have_experts ? further : 0);
  layers.replicated += real(model.hidden_size) * norm_vectors(model);  // the final norm

  const double stages = sizes.pp, table = real(model.hidden_size) * padded_vocabulary(config, sizes);
  const bool two_tables = !model.share_embeddings_and_output_weights && sizes.pp == 1;
  const double dense = (layers.sharded / stages + mtp.sharded + table * (two_tables ? 2 : 1)) / sizes.tp +
                       layers.replicated / stages + mtp.replicated;
  const double expert = (layers.expert / stages + mtp.expert) / (sizes.expert_tp() * sizes.ep);
  const auto bytes = [&](int replicas) {
    return config.ddp.use_distributed_optimizer ? 6 + 12.0 / replicas : 18;
  };
  return dense * bytes(sizes.dp()) + expert * bytes(sizes.edp());
}

double theoretical_activation_bytes_sp(const Config& config, const ParallelSizes& sizes,
                                       std::optional<int64_t> microbatches) {
  const ModelConfig& model = config.model;
  const double tokens = micro_batch_tokens(config), hidden = real(model.hidden_size);
  const double layers = tokens * (18 * hidden + 4 * real(model.ffn_hidden_size)) * real(model.num_layers);
  double bytes = (layers + embedding_bytes(config, sizes)) * pipeline_factor(config, sizes, microbatches);
  if (sizes.pp == 1) bytes += 4 * tokens * (hidden + padded_vocabulary(config, sizes));
  return bytes / sizes.tp;
}

double theoretical_activation_bytes_no_sp(const Config& config, const ParallelSizes& sizes,
                                          std::optional<int64_t> microbatches) {
  constexpr double kAllowance = 1.05;  // for what the formula does not name
  const ModelConfig& model = config.model;
  const double tokens = micro_batch_tokens(config), hidden = real(model.hidden_size);
  const double layers = tokens * hidden * (10 + 24.0 / sizes.tp) * real(model.num_layers);
  double bytes = (layers + embedding_bytes(config, sizes)) * pipeline_factor(config, sizes, microbatches);
  if (sizes.pp == 1) bytes += 2 * tokens * (padded_vocabulary(config, sizes) / sizes.tp + hidden);
  return kAllowance * bytes;
}

std::optional<TheoreticalMemory> theoretical_memory(const Config& config, const ParallelSizes& sizes,
                                                    std::optional<int64_t> microbatches) {
  if (config.model.is_hybrid_model) return std::nullopt;
  const bool selective = config.parallel.sequence_parallel &&
                         config.execution.recompute_granularity == RecomputeGranularity::selective;
  return TheoreticalMemory{
      .weights_and_optimizer = theoretical_weight_bytes(config, sizes),
      .activations = selective ? theoretical_activation_bytes_sp(config, sizes, microbatches)
                               : theoretical_activation_bytes_no_sp(config, sizes, microbatches)};
}

}  // namespace megatron
