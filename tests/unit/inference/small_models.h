#pragma once

#include <functional>
#include <random>

#include "megatron/comm/run_ranks.h"
#include "megatron/inference/engine.h"
#include "megatron/models/parallel_setup.h"

// Small decoders of every kind of layer, and an engine over one of them.
namespace megatron::testing {

struct SmallModel {
  const char* name;
  std::function<void(ModelConfig&)> change;
};

inline Config small_config(const SmallModel& kind, int tp = 1, int pp = 1) {
  Config config;
  ModelConfig& model = config.model;
  model.num_layers = 4;
  model.hidden_size = 32;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = 8;
  model.ffn_hidden_size = 64;
  model.vocab_size = 50;
  model.seq_length = model.max_position_embeddings = 96;
  model.position_embedding_type = PositionEmbedding::rope;
  model.init_method_std = 0.3;  // so that the likeliest token stands out
  model.hidden_dropout = model.attention_dropout = 0.5;
  if (kind.change) kind.change(model);
  config.parallel.tensor_model_parallel_size = tp;
  config.parallel.pipeline_model_parallel_size = pp;
  return config;
}

inline const SmallModel kDense{"dense", {}};

inline const SmallModel kWindow{"window and sinks", [](ModelConfig& model) {
                                  model.window_size = {5, 0};
                                  model.softmax_type = SoftmaxType::learnable;
                                }};

inline const SmallModel kHybrid{"hybrid", [](ModelConfig& model) {
                                  model.is_hybrid_model = true;
                                  model.hybrid_layer_pattern = "MG*M";
                                  model.mamba_num_heads = 4;
                                  model.mamba_head_dim = 8;
                                  model.mamba_num_groups = 2;
                                  model.mamba_state_dim = 6;
                                  model.mamba_chunk_size = 3;
                                  model.linear_num_key_heads = 2;
                                  model.linear_num_value_heads = 4;
                                  model.linear_key_head_dim = 6;
                                  model.linear_value_head_dim = 8;
                                }};

inline const SmallModel kLatent{"latent attention", [](ModelConfig& model) {
                                  model.multi_latent_attention = true;
                                  model.num_query_groups = 0;
                                  model.q_lora_rank = 12;
                                  model.kv_lora_rank = 10;
                                  model.qk_head_dim = 8;
                                  model.qk_pos_emb_head_dim = 4;
                                  model.v_head_dim = 6;
                                  model.rope_type = RopeType::rope;
                                }};

inline const SmallModel kExperts{"experts", [](ModelConfig& model) {
                                   model.num_moe_experts = 4;
                                   model.moe_router_topk = 2;
                                   model.moe_ffn_hidden_size = 32;
                                 }};

inline const SmallModel kLengths{"dynamic rope", [](ModelConfig& model) {
                                   model.dynamic_rope_factor = 2;
                                   model.max_position_embeddings = 12;
                                 }};

inline const SmallModel kMtp{"MTP layers", [](ModelConfig& model) { model.mtp_num_layers = 2; }};

inline const SmallModel kRepeatedMtp{"one MTP layer for three tokens", [](ModelConfig& model) {
                                       model.mtp_num_layers = 3;
                                       model.mtp_use_repeated_layer = true;
                                       model.share_embeddings_and_output_weights = false;
                                     }};

// What a request came to.
struct Answer {
  std::vector<int64_t> ids;
  std::vector<float> logprobs;
  std::vector<TokenChoice> tokens, prompt;
  std::optional<FinishReason> finish;
  int64_t cached_tokens = 0;

  RequestListener listener() {
    return [this](const RequestUpdate& update) {
      cached_tokens = update.cached_tokens;
      prompt.insert(prompt.end(), update.prompt.begin(), update.prompt.end());
      for (const TokenChoice& choice : update.tokens) {
        ids.push_back(choice.id);
        logprobs.push_back(choice.logprob);
        tokens.push_back(choice);
      }
      if (update.finish) finish = update.finish;
    };
  }
};

// Calls `use` with an engine over a model on the first of its ranks; the others follow.
inline void with_engine(const Config& config, DType dtype, const EngineOptions& options,
                        const std::function<void(Engine&, RankContext&, Model&)>& use, int ranks = 1) {
  run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, ranks));
    Model model(config, parallel, dtype);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, parameter->keep_fp32 ? accumulation_dtype(dtype) : dtype);
      parameter->initialize(ctx, 7);
    }
    Engine engine(ctx, world, model, options);
    if (rank == 0) {
      use(engine, ctx, model);
      engine.stop();
    }
    engine.run();
  });
}

inline std::vector<Answer> answers(const Config& config, DType dtype, const EngineOptions& options,
                                   const std::vector<Request>& requests, int ranks = 1) {
  std::vector<Answer> all(requests.size());
  with_engine(
      config, dtype, options,
      [&](Engine& engine, RankContext&, Model&) {
        for (size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], all[i].listener());
        while (engine.step()) {
        }
      },
      ranks);
  return all;
}

// Prompts of various lengths, some of which begin alike.
inline std::vector<Request> mixed_requests(int count, int64_t vocabulary = 50) {
  std::mt19937 random(5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  std::vector<int64_t> common;
  for (int i = 0; i < 20; ++i) common.push_back(below(vocabulary));
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request& request = requests.emplace_back();
    if (i % 3 == 0) request.prompt = common;
    for (int64_t n = 1 + below(30); n > 0; --n) request.prompt.push_back(below(vocabulary));
    request.max_tokens = 4 + below(12);
    request.top_logprobs = 2;
    if (i % 2) request.sampling = {.temperature = 1, .top_k = 8, .seed = static_cast<uint64_t>(i)};
  }
  return requests;
}

}  // namespace megatron::testing
