#pragma once

#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "parity/layout.h"
#include "support/test_device.h"

// The models and layouts that parity tests are made of, and the comparison with one rank.
namespace megatron::testing {

inline Config small_gpt() {
  Config config;
  config.model =
      llama_style({.layers = 4, .hidden = 32, .heads = 4, .groups = 2, .ffn = 48, .vocab = 50, .length = 8});
  config.model.make_vocab_size_divisible_by = 4;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 16;
  config.optimizer.weight_decay = 0.1;
  return config;
}

// The same with experts in three of its four layers.
inline Config mixture_of_experts() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 24;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  return config;
}

// The same with a layer of each kind that `pattern` names.
inline Config small_hybrid(const char* pattern) {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.is_hybrid_model = true;
  model.hybrid_layer_pattern = pattern;
  model.num_layers = static_cast<int64_t>(std::string_view(pattern).size());
  model.position_embedding_type = PositionEmbedding::none;
  model.mamba_num_heads = 8;
  model.mamba_head_dim = 4;
  model.mamba_num_groups = 4;
  model.mamba_state_dim = 3;
  model.mamba_chunk_size = 3;
  model.mamba_time_step_min = 1e-3;
  model.linear_num_key_heads = 4;
  model.linear_num_value_heads = 8;
  model.linear_key_head_dim = 4;
  model.linear_value_head_dim = 3;
  return config;
}

inline Config with_biases_and_layernorm() {
  Config config = small_gpt();
  config.model.normalization = Normalization::layer_norm;
  config.model.add_bias_linear = true;
  config.model.gated_linear_unit = false;
  config.model.activation_func = Activation::gelu;
  config.model.position_embedding_type = PositionEmbedding::learned_absolute;
  config.model.num_query_groups = 4;
  config.model.share_embeddings_and_output_weights = false;
  return config;
}

inline Config with_dropout() {
  Config config = small_gpt();
  config.model.attention_dropout = 0.2;
  config.model.hidden_dropout = 0.1;
  return config;
}

// Norms of heads and after each part, windows and another rotary base on some layers, sinks, bounded logits.
inline void use_every_kind_of_attention(ModelConfig& model) {
  model.qk_layernorm = model.post_attention_layernorm = model.post_mlp_layernorm = true;
  model.layernorm_zero_centered_gamma = true;
  model.window_size = {3, 0};
  model.window_attn_skip_freq = Json(2);
  model.rotary_base_local = 500;
  model.softmax_type = SoftmaxType::learnable;
  model.attn_logit_softcapping = 5;
  model.final_logit_softcapping = 4;
  model.no_rope_freq = Json(4);
}

inline std::vector<std::vector<int64_t>> batches_for(const Config& config, int steps) {
  return random_batches(config, steps);
}

// Labels that do not count, unevenly over sequences, ranks and micro-batches.
inline void leave_out_labels(std::vector<std::vector<int64_t>>& batches) {
  for (auto& batch : batches)
    for (size_t i = 0; i < batch.size(); ++i)
      if (i * i % 7 < i % 5) batch[i] = -100;
}

struct Layout {
  const char* name;
  int tp = 1, pp = 1, dp = 1, vpp = 1, cp = 1, ep = 1, etp = 0;  // etp 0: as tp
  bool sp = false;
  const char* stages = "";
  int64_t micro_batch = 2;
  int instances = 1;                  // copies of sharded states
  void (*change)(Config&) = nullptr;  // what else differs from the one rank
  std::vector<std::string> cp_kinds = {"p2p"};
  std::vector<int> cp_levels = {};
};

inline Config apply(Config config, const Layout& layout) {
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.virtual_pipeline_model_parallel_size = layout.vpp > 1 ? layout.vpp : 0;
  config.parallel.sequence_parallel = layout.sp;
  config.parallel.pipeline_model_parallel_layout = layout.stages;
  config.parallel.context_parallel_size = layout.cp;
  config.parallel.cp_comm_type = layout.cp_kinds;
  config.parallel.hierarchical_context_parallel_sizes.assign(layout.cp_levels.begin(),
                                                             layout.cp_levels.end());
  config.parallel.expert_model_parallel_size = layout.ep;
  if (layout.etp) config.parallel.expert_tensor_parallel_size = layout.etp;
  config.train.micro_batch_size = layout.micro_batch;
  if (layout.change) layout.change(config);
  return config;
}

inline ParallelSizes sizes_of(const Layout& layout) {
  ParallelSizes sizes{.world = layout.tp * layout.pp * layout.dp * layout.cp,
                      .tp = layout.tp,
                      .pp = layout.pp,
                      .cp = layout.cp,
                      .ep = layout.ep};
  if (layout.etp) sizes.etp = layout.etp;
  sizes.cp_levels = layout.cp_levels;
  sizes.optimizer_instances = layout.instances;
  return sizes;
}

inline void expect_equal(const Trained& one, const Trained& many, double tolerance) {
  ASSERT_EQ(one.losses.size(), many.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(one.losses[i], many.losses[i], tolerance * one.losses[i]) << "loss of step " << i;
    EXPECT_NEAR(one.grad_norms[i], many.grad_norms[i], tolerance * one.grad_norms[i])
        << "gradient norm of step " << i;
  }
  EXPECT_NEAR(one.evaluated, many.evaluated, tolerance * one.evaluated) << "loss after the last step";
  EXPECT_LE(many.ranks_apart, tolerance) << "losses and norms that ranks report";
  std::string where;
  EXPECT_LE(difference(one.gradients, many.gradients, &where), tolerance) << "gradient of " << where;
  EXPECT_LE(difference(one.parameters, many.parameters, &where), tolerance) << "parameter " << where;
}

inline constexpr int kSteps = 5;
inline constexpr double kTolerance = 1e-9;

// Every layout on `device` trains like one rank on the CPU; on a GPU, which the ranks share, so does one
// rank.
inline void check_layouts(const Config& config, std::span<const Layout> layouts,
                          Device device = test_device()) {
  auto batches = batches_for(config, kSteps);
  Trained one = train(config, {}, batches);
  EXPECT_LT(one.losses.back(), one.losses.front() + 1) << "training must not diverge";
  if (device != kCpu) {
    SCOPED_TRACE("one rank");
    expect_equal(one, train(config, {}, batches, DType::F64, {}, device), kTolerance);
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, train(apply(config, layout), sizes_of(layout), batches, DType::F64, {}, device),
                 kTolerance);
  }
}

// The same on the GPU, wherever the other tests compute.
inline void check_on_gpu(const Config& config, std::span<const Layout> layouts) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  check_layouts(config, layouts, kGpu);
}

// Losses of one rank on the GPU in narrower dtypes follow those of the CPU in fp64.
inline void check_narrow_on_gpu(const Config& config) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  auto batches = batches_for(config, kSteps);
  const Trained wide = train(config, {}, batches);
  for (auto [dtype, tolerance] : {std::pair{DType::F32, 1e-5}, {DType::BF16, 2e-2}}) {
    const Trained narrow = train(config, {}, batches, dtype, {}, kGpu);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], tolerance * wide.losses[i])
          << fmt::format("{}, step {}", dtype, i);
  }
}

}  // namespace megatron::testing
