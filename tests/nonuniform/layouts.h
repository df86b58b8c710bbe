#pragma once

#include "parity/cases.h"

// Replicas with tensor-parallel groups of different sizes, and models that they share unevenly.
namespace megatron::testing {

struct Nonuniform {
  const char* name;
  int tp = 4;
  std::vector<std::vector<int>> inactive;  // slots of each replica
  int pp = 1;
  int cp = 1;
};

inline const Nonuniform kFourTwo{"{4,2}", 4, {{}, {1, 2}}};
inline const Nonuniform kFourThree{"{4,3}", 4, {{}, {1}}};
inline const Nonuniform kFourOne{"{4,1}", 4, {{0, 1, 3}, {}}};
inline const Nonuniform kEightSix{"{8,6}", 8, {{}, {2, 5}}};
inline const Nonuniform kEightSevenSix{"{8,7,6}", 8, {{}, {2}, {0, 4}}};

inline ParallelSizes sizes_of(const Nonuniform& layout) {
  const int dp = static_cast<int>(layout.inactive.size());
  ParallelSizes sizes{
      .world = layout.tp * dp * layout.pp * layout.cp, .tp = layout.tp, .pp = layout.pp, .cp = layout.cp};
  for (int i = 0; i < dp; ++i)
    if (const std::vector<int>& slots = layout.inactive[static_cast<size_t>(i)]; !slots.empty())
      sizes.inactive.push_back({.dp = i, .slots = slots});
  return sizes;
}

// Eight heads in eight groups; neither the vocabulary nor the MLP divides by most sizes.
inline Config tied_gpt() {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 8, .groups = 8, .ffn = 40, .vocab = 50, .length = 8});
  config.model.make_vocab_size_divisible_by = 4;
  config.model.share_embeddings_and_output_weights = true;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 12;
  config.optimizer.weight_decay = 0.1;
  config.optimizer.clip_grad = 0.9;  // of some steps
  return config;
}

// Fewer key heads than ranks, of which a rank may have a part of several; norms of heads.
inline Config few_groups() {
  Config config = tied_gpt();
  config.model.group_query_attention = true;
  config.model.num_query_groups = 2;
  config.model.qk_layernorm = true;
  config.model.add_qkv_bias = true;
  config.model.share_embeddings_and_output_weights = false;
  return config;
}

inline Config biases() {
  Config config = tied_gpt();
  config.model.normalization = Normalization::layer_norm;
  config.model.add_bias_linear = true;
  config.model.gated_linear_unit = false;
  config.model.activation_func = Activation::gelu;
  config.model.position_embedding_type = PositionEmbedding::learned_absolute;
  config.model.hidden_dropout = 0.1;
  return config;
}

inline Config experts() {
  Config config = tied_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 24;
  model.moe_router_topk = 2;
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_shared_expert_intermediate_size = 16;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  return config;
}

inline Config latent() {
  Config config = tied_gpt();
  ModelConfig& model = config.model;
  model.multi_latent_attention = true;
  model.q_lora_rank = 12;
  model.kv_lora_rank = 10;
  model.qk_head_dim = 4;
  model.qk_pos_emb_head_dim = 4;
  model.v_head_dim = 6;
  model.rope_type = RopeType::rope;
  return config;
}

struct NonuniformOptions {
  bool sp = false, distributed = false;
};

inline Config apply(Config config, const Nonuniform& layout, const NonuniformOptions& options) {
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.context_parallel_size = layout.cp;
  config.parallel.sequence_parallel = options.sp;
  config.ddp.use_distributed_optimizer = options.distributed;
  config.ddp.overlap_grad_reduce = true;
  config.ddp.bucket_size = 1500;
  return config;
}

inline std::string name_of(const Nonuniform& layout, const NonuniformOptions& options) {
  return fmt::format("{}{}{}{}{}", layout.name, options.sp ? " sp" : "",
                     options.distributed ? " distributed" : "", layout.pp > 1 ? " pp2" : "",
                     layout.cp > 1 ? " cp2" : "");
}

}  // namespace megatron::testing
