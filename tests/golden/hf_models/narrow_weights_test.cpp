#include <gtest/gtest.h>

#include "golden/hf_models/cases.h"
#include "golden/hf_models/hf_case.h"
#include "megatron/nn/quantize_parameter.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"
#include "support/weight_error.h"

// Hugging Face's models with weights of few bits, beside their own logits.
namespace megatron {
namespace {

class HfNarrowWeights : public testing::HfCase {
 protected:
  // Gradients of the sum of all logits with random signs: for a parameter, the mean square of one over such
  // signs is the sum over all logits of the square of each one's gradient.
  void sign_gradients(GptModel& model, uint64_t seed) {
    for (Parameter* parameter : model.parameters()) parameter->accumulator.start_step();
    Tape tape(ctx_);
    Tensor sum;
    {
      TapeScope scope(ctx_, &tape);
      const Tensor made = model.logits(ctx_, hidden_states(model));
      std::vector<float> signs(static_cast<size_t>(made.numel()));
      for (size_t i = 0; i < signs.size(); ++i) signs[i] = Philox::at({seed, 3}, i).word[0] & 1 ? 1.F : -1.F;
      sum = ops::sum(ctx_, ops::mul(ctx_, made, ctx_.from_vector(signs, made.shape())));
    }
    tape.backward(ctx_, sum, ctx_.full(sum.shape(), sum.dtype(), 1));
  }
};

// Weights are rounded to multiples of a step, each by a step²/12 in the mean square, and logits follow as
// their gradients say. The factor of 1.5 is for what lies beyond that first order.
TEST_P(HfNarrowWeights, LogitsAreAsFarOffAsStepsAndGradientsSay) {
  if (!ctx_.device.is_cpu()) GTEST_SKIP() << "int4 is for the CPU";
  const std::vector<double> expected = testing::to_doubles(io_.tensor("out.logits"));
  constexpr int kProbes = 8;
  for (const DType narrow : {DType::I8, kInt4}) {
    const auto model = whole_model();
    std::map<std::string, std::vector<double>> squares;  // of gradients, summed over all logits
    for (int probe = 0; probe < kProbes; ++probe) {
      sign_gradients(*model, static_cast<uint64_t>(probe));
      for (Parameter* parameter : model->parameters()) {
        const auto gradient = testing::to_doubles(ctx_, parameter->accumulator.main_grad);
        std::vector<double>& sums = squares[parameter->name];
        sums.resize(gradient.size());
        for (size_t i = 0; i < gradient.size(); ++i) sums[i] += gradient[i] * gradient[i] / kProbes;
      }
    }
    double predicted = 0;
    for (Parameter* parameter : model->parameters()) {
      const std::vector<float> before = ctx_.to_vector<float>(parameter->value);
      if (!quantize_parameter(ctx_, *parameter, narrow)) continue;
      const std::vector<float> steps = testing::steps_of(ctx_, *parameter, before.size());
      const std::vector<double>& weights = squares[parameter->name];
      for (size_t i = 0; i < before.size(); ++i)
        if (before[i] != 0) predicted += weights[i] * steps[i] * steps[i] / 12;
    }
    const auto found = testing::to_doubles(
        ctx_, model->logits(ctx_, hidden_states(*model)).slice(1, 0, bridge_.model_config().vocab_size));
    ASSERT_EQ(found.size(), expected.size());
    double error = 0;
    for (size_t i = 0; i < found.size(); ++i) error += std::pow(found[i] - expected[i], 2);
    EXPECT_LT(std::sqrt(error), 1.5 * std::sqrt(predicted)) << name_of(narrow);
    EXPECT_GT(std::sqrt(error), std::sqrt(predicted) / 1.5) << name_of(narrow);
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, HfNarrowWeights, ::testing::ValuesIn(testing::kDenseCases),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron
