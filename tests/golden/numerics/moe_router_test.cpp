#include <gtest/gtest.h>

#include "megatron/ops/index.h"
#include "support/golden.h"

// The choices of a router: scores, the k best of them, and the values at chosen places.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::kExact;
using testing::to_device;

class GoldenRouter : public ::testing::Test {
 protected:
  void expect_indices(const std::string& name, const Tensor& indices) {
    EXPECT_TRUE(is_close(ctx_, name, indices, golden_.tensor(name), kExact));
  }
  void expect(const std::string& name, const Tensor& values) {
    EXPECT_TRUE(is_close(ctx_, name, values, golden_.tensor(name), kElementwise));
  }
  Tensor softmax(const Tensor& x) {
    Tensor y = ctx_.empty_like(x);
    ctx_.kernels->softmax(ctx_.kernel_context(), {x, y});
    return y;
  }

  RankContext ctx_{testing::test_device()};
  SafetensorsFile golden_ = golden_tensors("numerics", "moe_router");
  Tensor logits_ = to_device(ctx_, golden_.tensor("logits"));
};

TEST_F(GoldenRouter, SoftmaxThenTopK) {
  for (int64_t k : {1, 2, 4}) {
    const ops::TopK best = ops::top_k(ctx_, softmax(logits_), k);
    expect_indices(fmt::format("softmax_top{}.idx", k), best.indices);
    expect(fmt::format("softmax_top{}.prob", k), best.values);
  }
}

TEST_F(GoldenRouter, TopKThenSoftmax) {
  for (int64_t k : {1, 2, 4})
    expect(fmt::format("softmax_top{}.post_softmax", k), softmax(ops::top_k(ctx_, logits_, k).values));
}

TEST_F(GoldenRouter, SigmoidChosenWithACorrection) {
  Tensor scores = ctx_.empty_like(logits_), corrected = ctx_.empty_like(logits_);
  ctx_.kernels->unary(ctx_.kernel_context(), {Unary::Sigmoid, logits_, {}, scores});
  const Tensor correction = to_device(ctx_, golden_.tensor("corr")).expand(scores.shape());
  ctx_.kernels->binary(ctx_.kernel_context(), {Binary::Add, scores, correction, corrected});
  const ops::TopK best = ops::top_k(ctx_, corrected, 2);
  expect_indices("sigmoid_corr.idx", best.indices);
  // Weights come from the scores themselves, made to sum to 2.5.
  std::vector<double> weights = testing::to_doubles(ctx_, ops::gather_columns(ctx_, scores, best.indices));
  for (size_t i = 0; i < weights.size(); i += 2) {
    const double sum = weights[i] + weights[i + 1] + 1e-20;
    weights[i] *= 2.5 / sum, weights[i + 1] *= 2.5 / sum;
  }
  EXPECT_TRUE(is_close("sigmoid_corr.w", best.values.shape(), weights,
                       testing::to_doubles(golden_.tensor("sigmoid_corr.w")), kElementwise));
}

}  // namespace
}  // namespace megatron
