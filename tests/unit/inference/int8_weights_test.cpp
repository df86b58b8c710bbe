#include <gtest/gtest.h>

#include <cmath>

#include "megatron/nn/quantize_parameter.h"
#include "megatron/ops/quantize.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::small_config;
using testing::SmallModel;

const SmallModel kUntied{"untied", [](ModelConfig& model) {
                           model.share_embeddings_and_output_weights = false;
                           model.add_bias_linear = true;
                         }};

// What a prompt's logits are with weights as they are, in int8, and in fp32 with the values of the int8 ones.
struct Logits {
  std::vector<float> plain, quantized, stored;
};

std::vector<float> in_fp32(RankContext& ctx, const Tensor& x) {
  Tensor wide = ctx.empty(x.shape(), DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {x, wide});
  return ctx.to_vector<float>(wide);
}

Logits logits_of(const Config& config, DType dtype, int ranks) {
  Logits result;
  run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, ranks));
    Model model(config, parallel, dtype);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, dtype);
      parameter->initialize(ctx, 7);
    }
    PagedCache cache(ctx, model.cache_shapes(), dtype, 4, 16, 1);
    StepInput step;
    step.sequences.push_back({.tokens = {}, .logits = 24, .prompt = 24, .blocks = {0, 1, 2}});
    for (int64_t i = 0; i < 24; ++i) step.sequences[0].tokens.push_back(i * 7 % 50);
    const auto run = [&] { return in_fp32(ctx, model.decode(ctx, step, cache)); };
    Logits own;
    own.plain = run();
    int count = 0;
    for (Parameter* parameter : model.parameters()) count += quantize_parameter(ctx, *parameter, DType::I8);
    EXPECT_GT(count, 3);
    own.quantized = run();
    for (Parameter* parameter : model.parameters()) {
      if (!parameter->scale) continue;
      const Shape shape = parameter->value.shape();
      const int64_t columns = shape[-1], rows = parameter->value.numel() / columns;
      parameter->value = ops::dequantize(ctx,
                                         {parameter->value.view({rows, columns}),
                                          parameter->scale.view({rows, (columns + 127) / 128}), 1, 128},
                                         dtype)
                             .view(shape);
      parameter->scale = {};
    }
    own.stored = run();
    if (rank == 0) result = own;
  });
  return result;
}

class Int8Weights : public ::testing::TestWithParam<const SmallModel*> {};

TEST_P(Int8Weights, AreReadAsTheValuesTheyStandFor) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    Config config = small_config(*GetParam(), tp, pp);
    config.model.init_method_std = 0.1;
    const Logits found = logits_of(config, DType::F32, tp * pp);
    double error = 0, size = 0;
    for (size_t i = 0; i < found.plain.size(); ++i) {
      ASSERT_NEAR(found.quantized[i], found.stored[i], 2e-5 * (1 + std::abs(found.stored[i]))) << i;
      error += std::pow(found.quantized[i] - found.plain[i], 2);
      size += std::pow(found.plain[i], 2);
    }
    EXPECT_GT(error, 0) << "something was quantised";
    EXPECT_LT(std::sqrt(error / size), 0.05) << "tp " << tp << " pp " << pp;
  }
}

TEST_P(Int8Weights, InBf16) {
  Config config = small_config(*GetParam());
  config.model.init_method_std = 0.1;
  const Logits found = logits_of(config, DType::BF16, 1);
  double error = 0, size = 0;
  for (size_t i = 0; i < found.plain.size(); ++i) {
    error += std::pow(found.quantized[i] - found.plain[i], 2);
    size += std::pow(found.plain[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.08);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Int8Weights,
                         ::testing::Values(&testing::kDense, &testing::kHybrid, &testing::kLatent,
                                           &testing::kExperts, &kUntied),
                         [](const auto& info) {
                           std::string name = info.param->name;
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace megatron
