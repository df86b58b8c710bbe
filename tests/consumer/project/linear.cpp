// A linear layer and its gradients through the installed package: y = x wᵀ, loss Σ y.
#include "megatron/ops/linear.h"

using namespace megatron;

int main() {
  RankContext ctx;
  Tensor w = ctx.from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  GradAccumulator accumulator;
  accumulator.main_grad = ctx.zeros({2, 3}, DType::F32);
  Tape tape(ctx);
  Tensor x = tape.watch(ctx.from_vector<float>({1, 0, 2, -1, 1, 0}, {2, 3})), y;
  {
    TapeScope scope(ctx, &tape);
    y = ops::linear(ctx, x, {w, &accumulator});
  }
  tape.backward(ctx, y, ctx.full({2, 2}, DType::F32, 1));
  require(ctx.to_vector<float>(y) == std::vector<float>{7, 16, 1, 1}, "consumer: the product is wrong");
  require(ctx.to_vector<float>(tape.grad(x)) == std::vector<float>{5, 7, 9, 5, 7, 9},
          "consumer: the gradient of x is wrong");
  require(ctx.to_vector<float>(accumulator.main_grad) == std::vector<float>{0, 1, 2, 0, 1, 2},
          "consumer: the gradient of the weight is wrong");
}
