#include <gtest/gtest.h>

#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "support/to_doubles.h"

// Steps that replay a CUDA graph give the bits of steps that do not, whatever the step holds.
namespace megatron::testing {
namespace {

// Losses, norms and evaluations of ten steps on a GPU; what the last one left of the weights.
struct Seen {
  std::vector<double> numbers;
  std::vector<std::vector<double>> weights;
};

Seen run_steps(Config config, DType dtype, bool captured) {
  config.precision.deterministic_mode = true;
  config.execution.cuda_graph_impl = captured ? GraphImpl::full_iteration : GraphImpl::none;
  config.execution.cuda_graph_warmup_steps = 2;
  auto batches = batches_for(config, 10);
  for (size_t i = 5; i < batches[7].size(); i += 9) batches[7][i] = -100;  // runs as always
  RankContext ctx(Device{DeviceType::Cuda, 0});
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, dtype);
  Seen seen;
  for (size_t step = 0; step < batches.size(); ++step) {
    const StepReport report = trainer.step(ctx, batches[step], 1e-2);
    const bool taken = report.update == Update::taken;  // else its norm may be NaN, which equals nothing
    seen.numbers.insert(seen.numbers.end(), {report.loss, taken ? report.grad_norm : -1, report.loss_scale});
    // Before the CUDA graph, behind it, and twice in a row.
    if (step == 1 || step == 4 || step == 5) seen.numbers.push_back(trainer.evaluate(ctx, batches[0]));
    if (step == 5) seen.numbers.push_back(trainer.evaluate(ctx, batches[1]));
  }
  for (Parameter* parameter : trainer.parameters()) {
    seen.weights.push_back(to_doubles(ctx, parameter->value));
  }
  return seen;
}

void expect_same_bits(const Config& config, std::initializer_list<DType> dtypes) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  for (DType dtype : dtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Seen plain = run_steps(config, dtype, false), replayed = run_steps(config, dtype, true);
    EXPECT_EQ(plain.numbers, replayed.numbers);
    EXPECT_EQ(plain.weights, replayed.weights);
  }
}

Config wide_enough_for_fp8() {
  Config config = small_gpt();
  config.model = llama_style(
      {.layers = 2, .hidden = 64, .heads = 4, .groups = 2, .ffn = 128, .vocab = 128, .length = 32});
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  return config;
}

TEST(CudaParity, CapturedStepsAroundEvaluations) { expect_same_bits(small_gpt(), {DType::F64, DType::BF16}); }

// Every step draws other numbers, and the same ones as without a CUDA graph.
TEST(CudaParity, CapturedStepsWithDropout) { expect_same_bits(with_dropout(), {DType::F64, DType::BF16}); }

TEST(CudaParity, CapturedStepsWithRecompute) {
  Config config = with_dropout();
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"core_attn", "layernorm", "mlp"};
  expect_same_bits(config, {DType::F64, DType::BF16});
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = 1;
  config.execution.recompute_modules = {};
  expect_same_bits(config, {DType::BF16});
}

TEST(CudaParity, CapturedStepsInFp8) {
  for (Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    Config config = wide_enough_for_fp8();
    config.precision.fp8 = recipe == Fp8Recipe::blockwise ? Fp8Format::e4m3 : Fp8Format::hybrid;
    config.precision.fp8_recipe = recipe;
    expect_same_bits(config, {DType::BF16});
    config.execution.recompute_granularity = RecomputeGranularity::selective;
    config.execution.recompute_modules = {"mlp"};
    config.model.hidden_dropout = 0.1;
    expect_same_bits(config, {DType::BF16});
  }
}

TEST(CudaParity, CapturedStepsOfAPerTokenLoss) {
  Config config = small_gpt();
  config.model.calculate_per_token_loss = true;
  config.ddp.grad_reduce_in_fp32 = false;
  expect_same_bits(config, {DType::F64, DType::BF16});
}

// On one rank the host reads no counts of tokens. Losses that balance experts and the experts' biases are of
// the graph, too.
TEST(CudaParity, CapturedStepsOfExperts) {
  Config config = mixture_of_experts();
  config.model.moe_router_load_balancing_type = {"aux_loss", "global_aux_loss"};
  config.model.moe_aux_loss_coeff = {1e-2, 1e-2};
  config.model.moe_z_loss_coeff = 1e-3;
  expect_same_bits(config, {DType::F64, DType::BF16});
  config.model.moe_router_score_function = RouterScore::sigmoid;
  config.model.moe_router_enable_expert_bias = true;
  config.model.moe_router_bias_update_rate = 0.1;
  config.model.moe_router_load_balancing_type = {"seq_aux_loss"};
  config.model.moe_aux_loss_coeff = {1e-2};
  expect_same_bits(config, {DType::F64, DType::BF16});
}

TEST(CudaParity, CapturedStepsOfExpertsInFp8) {
  for (Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    Config config = wide_enough_for_fp8();
    config.model.num_moe_experts = 4;
    config.model.moe_ffn_hidden_size = 64;
    config.model.moe_router_topk = 2;
    config.model.moe_router_dtype = RouterDType::fp32;
    config.precision.fp8 = recipe == Fp8Recipe::blockwise ? Fp8Format::e4m3 : Fp8Format::hybrid;
    config.precision.fp8_recipe = recipe;
    expect_same_bits(config, {DType::BF16});
  }
}

TEST(CudaParity, CapturedStepsOfMtpLayers) {
  Config config = mixture_of_experts();
  config.model.mtp_num_layers = 2;
  config.model.mtp_loss_scaling_factor = 0.3;
  expect_same_bits(config, {DType::F64, DType::BF16});
}

// The scale is read from tensors, so that a graph goes on when it changes.
TEST(CudaParity, CapturedStepsWhoseLossScaleChanges) {
  Config config = small_gpt();
  config.precision.fp16 = true;
  config.optimizer.initial_loss_scale = 1 << 24;
  config.optimizer.hysteresis = 1;
  config.optimizer.loss_scale_window = 2;
  expect_same_bits(config, {DType::F64, DType::F16});
}

}  // namespace
}  // namespace megatron::testing
