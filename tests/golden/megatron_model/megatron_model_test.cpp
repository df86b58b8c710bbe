#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/ops/moe.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/golden.h"

// Models under Megatron's parameter names against Megatron's own: logits, losses, gradients (balancing losses
// included) and ten steps of training.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::Tolerance;

constexpr Tolerance kLogits{5e-5, 0, 0}, kGradients{0, 0, 2e-4};

Config llama() {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 48, .heads = 4, .groups = 2, .ffn = 80, .vocab = 192, .length = 32});
  ModelConfig& model = config.model;
  model.kv_channels = 16;
  model.share_embeddings_and_output_weights = false;
  model.make_vocab_size_divisible_by = 64;
  config.train.micro_batch_size = 2;
  config.optimizer.adam_beta2 = 0.95;
  config.optimizer.weight_decay = 0.1;
  config.optimizer.clip_grad = 1.0;
  return config;
}

Config gpt_dense() {
  Config config = llama();
  ModelConfig& model = config.model;
  model.kv_channels = 12;
  model.num_query_groups = 4;
  model.group_query_attention = false;
  model.normalization = Normalization::layer_norm;
  model.position_embedding_type = PositionEmbedding::learned_absolute;
  model.max_position_embeddings = 64;
  model.activation_func = Activation::gelu;
  model.gated_linear_unit = false;
  model.add_bias_linear = true;
  model.share_embeddings_and_output_weights = true;
  return config;
}

Config gpt_dense_untied_qkvbias() {
  Config config = gpt_dense();
  config.model.add_qkv_bias = true;
  config.model.share_embeddings_and_output_weights = false;
  return config;
}

Config llama_rope_interleaved() {
  Config config = llama();
  config.model.rotary_interleaved = true;
  return config;
}

Config llama_rope_partial() {
  Config config = llama();
  config.model.rotary_percent = 0.5;
  return config;
}

Config llama31_rope_scaling() {
  Config config = llama();
  config.model.rotary_base = 500000;
  config.model.rope_scaling = true;
  config.model.rope_scaling_factor = 8;
  return config;
}

Config qwen3_qknorm() {
  Config config = llama();
  config.model.qk_layernorm = true;
  return config;
}

Config squared_relu() {
  Config config = llama_rope_partial();
  config.model.normalization = Normalization::layer_norm;
  config.model.activation_func = Activation::squared_relu;
  config.model.gated_linear_unit = false;
  return config;
}

Config mixture() {
  Config config = llama();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 32;
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_router_dtype = RouterDType::fp32;
  model.moe_router_bias_update_rate = 0;  // the curves were made without it
  return config;
}

Config top2() {
  Config config = mixture();
  config.model.moe_z_loss_coeff = 1e-3;
  config.model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  return config;
}

Config capacity() {
  Config config = mixture();
  config.model.moe_expert_capacity_factor = 1.0;
  return config;
}

Config shared_sigmoid() {
  Config config = mixture();
  ModelConfig& model = config.model;
  model.moe_router_load_balancing_type = {"none"};
  model.moe_aux_loss_coeff = {0.0};
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_topk_scaling_factor = 2.5;
  model.moe_shared_expert_intermediate_size = 40;
  return config;
}

// The tensor of a parameter, or the tensors of its experts, under the names of the fixture.
std::vector<double> golden_values(const SafetensorsFile& file, const Parameter& parameter) {
  if (!parameter.expert) return testing::to_doubles(file.tensor(parameter.name));
  std::vector<double> all;
  for (int64_t e = 0; e < parameter.shard.global_shape[0]; ++e) {
    std::string name = parameter.name, general = "experts.experts.";
    name.replace(name.find(general), general.size(), fmt::format("experts.local_experts.{}.", e));
    std::vector<double> one = testing::to_doubles(file.tensor(name));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

struct Case {
  const char* name;
  Config (*make)();
};

class GoldenModel : public ::testing::TestWithParam<Case> {
 protected:
  GoldenModel() { alone_.world().attach(ctx_); }

  std::string file(const char* name) const { return std::string(GetParam().name) + "/" + name; }
  std::unique_ptr<RankTrainer> trainer() {
    auto made = std::make_unique<RankTrainer>(ctx_, config_, alone_, DType::F32);
    SafetensorsFile values = golden_tensors("megatron_model", file("params"));
    for (Parameter* parameter : made->parameters()) {
      Tensor wide = ctx_.from_vector(golden_values(values, *parameter), parameter->value.shape());
      ctx_.kernels->copy(ctx_.kernel_context(), {wide, parameter->value});
    }
    return made;
  }
  // The batch of row i: [2, 33].
  std::vector<int64_t> batch(size_t i) {
    std::vector<double> all = testing::to_doubles(io_.tensor("in.tokens"));
    return {all.begin() + static_cast<int64_t>(i * 66), all.begin() + static_cast<int64_t>((i + 1) * 66)};
  }

  RankContext ctx_{testing::test_device()};
  ParallelContext alone_;
  Config config_ = GetParam().make();
  SafetensorsFile io_ = golden_tensors("megatron_model", file("io"));
};

TEST_P(GoldenModel, LogitsAndTokenLosses) {
  auto made = trainer();
  GptModel& model = made->chunk(0);
  MicroBatch micro;
  micro.seq = model.sequences(ctx_, 2, 32);
  micro.seq.training = false;
  std::vector<int64_t> rows = batch(0), inputs, labels;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % 33 != 32) inputs.push_back(rows[i]);
    if (i % 33 != 0) labels.push_back(rows[i]);
  }
  micro.ids = ctx_.from_vector(inputs, {64});
  Tensor hidden = model.run_stage(ctx_, {}, micro)[0];
  EXPECT_TRUE(is_close(ctx_, "logits", model.logits(ctx_, hidden), io_.tensor("out.logits"), kLogits));
  EXPECT_TRUE(is_close(ctx_, "token losses", model.token_losses(ctx_, hidden, ctx_.from_vector(labels, {64})),
                       io_.tensor("out.token_loss"), kLogits));
}

TEST_P(GoldenModel, Gradients) {
  auto made = trainer();
  StepReport report = made->step(ctx_, batch(0), 0);
  EXPECT_NEAR(report.loss, testing::to_doubles(io_.tensor("out.loss"))[0], 2e-6);
  SafetensorsFile gradients = golden_tensors("megatron_model", file("grads"));
  for (Parameter* parameter : made->parameters()) {
    if (!parameter->trainable) continue;
    EXPECT_TRUE(is_close(parameter->name, parameter->shard.global_shape,
                         testing::to_doubles(ctx_, parameter->accumulator.main_grad),
                         golden_values(gradients, *parameter), kGradients));
  }
}

TEST_P(GoldenModel, TrainingCurve) {
  auto made = trainer();
  auto losses = testing::to_doubles(io_.tensor("train.loss")),
       norms = testing::to_doubles(io_.tensor("train.grad_norm")),
       rates = testing::to_doubles(io_.tensor("train.lr"));
  for (size_t i = 0; i < losses.size(); ++i) {
    StepReport report = made->step(ctx_, batch(i + 1), rates[i]);
    EXPECT_NEAR(report.loss, losses[i], 5e-4) << "step " << i;
    EXPECT_NEAR(report.grad_norm, norms[i], 5e-4 * norms[i]) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenModel,
                         ::testing::Values(Case{"gpt_dense", gpt_dense},
                                           Case{"gpt_dense_untied_qkvbias", gpt_dense_untied_qkvbias},
                                           Case{"llama", llama},
                                           Case{"llama_rope_interleaved", llama_rope_interleaved},
                                           Case{"llama_rope_partial", llama_rope_partial},
                                           Case{"llama31_rope_scaling", llama31_rope_scaling},
                                           Case{"qwen3_qknorm", qwen3_qknorm},
                                           Case{"squared_relu", squared_relu}, Case{"moe_top2", top2},
                                           Case{"moe_allgather", mixture}, Case{"moe_capacity", capacity},
                                           Case{"moe_shared_sigmoid", shared_sigmoid}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace megatron
