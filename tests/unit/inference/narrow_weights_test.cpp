#include <gtest/gtest.h>

#include <cmath>

#include "megatron/nn/quantize_parameter.h"
#include "megatron/ops/quantize.h"
#include "support/weight_error.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::Answer;
using testing::relative_error;
using testing::small_config;
using testing::SmallModel;
using testing::stored_values;

const SmallModel kUntied{"untied", [](ModelConfig& model) {
                           model.share_embeddings_and_output_weights = false;
                           model.add_bias_linear = true;
                         }};

// What a prompt's logits are with weights as they are, in few bits, and with the values that those stand for.
struct Logits {
  std::vector<float> plain, quantized, stored;
  double step = 0;  // the root mean square of the steps of all weights
};

std::vector<float> in_fp32(RankContext& ctx, const Tensor& x) {
  Tensor wide = ctx.empty(x.shape(), DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {x, wide});
  return ctx.to_vector<float>(wide);
}

Logits logits_of(const Config& config, DType dtype, DType narrow, int ranks) {
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
    double squares = 0, numbers = 0;
    for (Parameter* parameter : model.parameters()) {
      const std::vector<float> before = in_fp32(ctx, parameter->value);
      if (!quantize_parameter(ctx, *parameter, narrow)) continue;
      ++count;
      EXPECT_EQ(parameter->value.dtype(), narrow) << parameter->name;
      const std::vector<float> steps = testing::steps_of(ctx, *parameter, before.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        if (before[i] == 0) continue;  // of a padded vocabulary
        squares += std::pow(steps[i], 2);
        ++numbers;
      }
    }
    EXPECT_GT(count, 3);
    own.step = std::sqrt(squares / numbers);
    own.quantized = run();
    for (Parameter* parameter : model.parameters()) {
      if (!parameter->scale) continue;
      parameter->value = stored_values(ctx, *parameter, dtype);
      parameter->scale = {};
    }
    own.stored = run();
    if (rank == 0) result = own;
  });
  return result;
}

using Kind = std::tuple<const SmallModel*, DType>;

class NarrowWeights : public ::testing::TestWithParam<Kind> {
 protected:
  Config config(int tp = 1, int pp = 1) const {
    Config config = small_config(*std::get<0>(GetParam()), tp, pp);
    config.model.init_method_std = 0.1;
    return config;
  }
  DType narrow() const { return std::get<1>(GetParam()); }
  // What int8 is allowed, as much more as the steps are larger.
  double bound(double of_int8, DType dtype, const Logits& found) const {
    return of_int8 * found.step / logits_of(config(), dtype, DType::I8, 1).step;
  }
};

TEST_P(NarrowWeights, AreReadAsTheValuesTheyStandFor) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    const Logits found = logits_of(config(tp, pp), DType::F32, narrow(), tp * pp);
    for (size_t i = 0; i < found.plain.size(); ++i)
      ASSERT_NEAR(found.quantized[i], found.stored[i], 2e-5 * (1 + std::abs(found.stored[i]))) << i;
    const double error = relative_error(found.quantized, found.plain);
    EXPECT_GT(error, 0) << "something was quantised";
    EXPECT_LT(error, bound(0.05, DType::F32, found)) << "tp " << tp << " pp " << pp;
  }
}

TEST_P(NarrowWeights, InBf16) {
  const Logits found = logits_of(config(), DType::BF16, narrow(), 1);
  EXPECT_LT(relative_error(found.quantized, found.plain), bound(0.08, DType::BF16, found));
}

INSTANTIATE_TEST_SUITE_P(Kinds, NarrowWeights,
                         ::testing::Combine(::testing::Values(&testing::kDense, &testing::kHybrid,
                                                              &testing::kLatent, &testing::kExperts,
                                                              &kUntied),
                                            ::testing::Values(DType::I8, kInt4)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param)->name;
                           std::erase(name, ' ');
                           return name + (std::get<1>(info.param) == kInt4 ? "Int4" : "Int8");
                         });

// Where every rank's rows are whole groups, the weights are those of one rank.
TEST(NarrowWeightsOnRanks, GiveTheLogitsOfOneRank) {
  const auto wide_config = [](int tp, int pp) {
    Config config = small_config(kUntied, tp, pp);
    config.model.hidden_size = config.model.ffn_hidden_size = 256;
    config.model.kv_channels = 64;
    config.model.init_method_std = 0.05;
    return config;
  };
  for (const DType narrow : {DType::I8, kInt4}) {
    const std::vector<float> one = logits_of(wide_config(1, 1), DType::F32, narrow, 1).quantized;
    for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
      const std::vector<float> found = logits_of(wide_config(tp, pp), DType::F32, narrow, tp * pp).quantized;
      ASSERT_EQ(found.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i)
        ASSERT_NEAR(found[i], one[i], 2e-5 * (1 + std::abs(one[i])))
            << name_of(narrow) << " tp " << tp << " pp " << pp << " at " << i;
    }
  }
}

// A request is answered as it is alone, to the last bit.
TEST(NarrowWeightsInBatches, DoNotLetAnswersDependOnOthers) {
  const std::vector<Request> requests = testing::mixed_requests(7);
  for (const SmallModel* kind : {&testing::kDense, &testing::kExperts})
    for (const DType narrow : {DType::I8, kInt4}) {
      const auto answers = [&](const std::vector<Request>& some) {
        std::vector<Answer> all(some.size());
        testing::with_engine(small_config(*kind), DType::F32,
                             {.block_size = 4, .max_tokens = 12, .batch_invariant = true},
                             [&](Engine& engine, RankContext& ctx, Model& model) {
                               for (Parameter* parameter : model.parameters())
                                 quantize_parameter(ctx, *parameter, narrow);
                               for (size_t i = 0; i < some.size(); ++i)
                                 engine.submit(some[i], all[i].listener());
                               while (engine.step()) {
                               }
                             });
        return all;
      };
      const std::vector<Answer> together = answers(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Answer alone = answers({requests[i]})[0];
        EXPECT_EQ(together[i].ids, alone.ids) << kind->name << " " << name_of(narrow) << " request " << i;
        EXPECT_EQ(together[i].logprobs, alone.logprobs) << kind->name << " " << name_of(narrow);
      }
    }
}

}  // namespace
}  // namespace megatron
