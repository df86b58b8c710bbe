#include "megatron/transformer/hyper_connection.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/gradcheck.h"

namespace megatron {
namespace {

// A token of zeros, as an embedding row that was never trained gives, has no direction: its gradients are
// numbers all the same.
TEST(HyperConnection, ATokenOfZerosHasGradients) {
  constexpr int64_t kTokens = 3, kHidden = 5, kStreams = 2;
  ModelConfig config;
  config.hidden_size = kHidden;
  config.enable_mhc_connections = true;
  config.mhc_num_residual_streams = kStreams;
  config.mhc_sinkhorn_iterations = 3;
  config.mhc_init_gating_factor = 1;
  config.init_method_std = 0.5;
  RankContext ctx;
  HyperConnection connection("connection", config, {});
  for (Parameter* parameter : connection.parameters()) {
    parameter->allocate(ctx, DType::F64);
    parameter->initialize(ctx, 7);
    parameter->allocate_gradient(ctx);
  }
  Tensor streams = testing::random_tensor(ctx, {kTokens, kStreams * kHidden}, 1);
  for (int64_t i = 0; i < kStreams * kHidden; ++i) streams.data<double>()[i] = 0;
  Tape tape(ctx);
  const Tensor watched = tape.watch(streams);
  Tensor input;
  {
    TapeScope scope(ctx, &tape);
    input = connection.read(ctx, watched, false).input;
  }
  tape.backward_data(ctx, std::vector{input},
                     std::vector{testing::random_tensor(ctx, {kTokens, kHidden}, 2)});
  for (const double value : ctx.to_vector<double>(tape.grad(watched))) EXPECT_TRUE(std::isfinite(value));
  for (Parameter* parameter : connection.parameters())
    for (const double value : ctx.to_vector<double>(parameter->accumulator.main_grad))
      EXPECT_TRUE(std::isfinite(value)) << parameter->name;
}

}  // namespace
}  // namespace megatron
