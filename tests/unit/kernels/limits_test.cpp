#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"
#include "megatron/kernels/limits/launch_check.h"

// What families of CUDA kernels refuse, and the meta kernels that ask them.
namespace megatron::testing {
namespace {

constexpr GpuFacts kHopper{90, 227 * 1024}, kUnknown{};

class LaunchLimits : public ::testing::Test {
 protected:
  Tensor shaped(Shape shape, DType dtype = DType::BF16) { return ctx.empty(shape, dtype); }
  NormArgs norm(int64_t columns, DType dtype) {
    NormArgs args;
    args.x = shaped({2, columns}, dtype), args.y = shaped({2, columns}, dtype);
    return args;
  }
  RankContext ctx{kMeta};
};

TEST_F(LaunchLimits, RowsOfNorms) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    const int64_t vectors = limits::norm_row(bytes, true), single = limits::norm_row(bytes, false);
    EXPECT_FALSE(refuse(norm(vectors, dtype), kUnknown));
    EXPECT_TRUE(refuse(norm(vectors + 16 / bytes, dtype), kUnknown));
    EXPECT_FALSE(refuse(norm(single - 1, dtype), kUnknown));
    EXPECT_TRUE(refuse(norm(single + 1, dtype), kUnknown)) << "rows of no whole vectors";
  }
  // Rows that lie apart by no whole vector.
  NormArgs args = norm(16384, DType::BF16);
  EXPECT_FALSE(refuse(args, kUnknown));
  args.x = shaped({2, 16385}).slice(1, 0, 16384);
  const std::optional<Refusal> refusal = refuse(args, kUnknown);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->limit, LaunchLimit::NormRow);
  EXPECT_EQ(refusal->got, 16384);
}

AttentionBackwardArgs attention(RankContext& ctx, int64_t d, int64_t dv, DType dtype) {
  AttentionBackwardArgs args;
  args.forward.q = ctx.empty({8, 2, d}, dtype), args.forward.k = ctx.empty({8, 2, d}, dtype);
  args.forward.v = ctx.empty({8, 2, dv}, dtype);
  return args;
}

TEST_F(LaunchLimits, HeadsOfAttention) {
  EXPECT_FALSE(refuse(attention(ctx, 256, 256, DType::BF16), kHopper));
  EXPECT_TRUE(refuse(attention(ctx, 264, 128, DType::BF16), kHopper));
  // Keys may be wider where no gradient is taken, values of a paged cache twice as wide.
  EXPECT_FALSE(refuse(attention(ctx, 264, 128, DType::BF16).forward, kHopper));
  AttentionArgs paged = attention(ctx, 576, 512, DType::BF16).forward;
  EXPECT_TRUE(refuse(paged, kHopper));
  paged.blocks = shaped({1, 4}, DType::I32);
  EXPECT_FALSE(refuse(paged, kHopper));
  const std::optional<Refusal> memory = refuse(paged, {89, 99 * 1024});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit, LaunchLimit::AttentionMemory);
  EXPECT_TRUE(refuse(attention(ctx, 256, 256, DType::F64), {89, 99 * 1024}));
  EXPECT_FALSE(refuse(attention(ctx, 256, 256, DType::F64), kHopper));
}

TEST_F(LaunchLimits, Fp8OfGenerations) {
  GemmArgs args{
      .a = shaped({16, 16}, DType::F8E4M3), .b = shaped({16, 16}, DType::F8E4M3), .c = shaped({16, 16})};
  const auto limit = [&](int capability) {
    const std::optional<Refusal> refusal = refuse(args, {capability, 0});
    return refusal ? std::optional(refusal->limit) : std::nullopt;
  };
  EXPECT_EQ(limit(80), LaunchLimit::Fp8Generation);
  EXPECT_EQ(limit(89), std::nullopt);
  EXPECT_EQ(limit(0), std::nullopt) << "of which nothing is known";
  args.a_block_rows = 1, args.b_block_rows = 128;
  EXPECT_EQ(limit(89), LaunchLimit::Fp8Blocks);
  EXPECT_EQ(limit(90), std::nullopt);
  EXPECT_EQ(limit(100), LaunchLimit::Fp8Blocks);
  args.a = shaped({16, 16}), args.a_block_rows = 0;
  EXPECT_EQ(limit(80), std::nullopt);
}

TEST_F(LaunchLimits, GradientsOfLogits) {
  const auto grad = [&](int64_t columns) {
    CrossEntropyGradArgs args;
    args.logits = args.dlogits = shaped({1, columns});
    return args;
  };
  EXPECT_FALSE(refuse(grad(limits::logits(1)), kUnknown)) << "whole vectors";
  EXPECT_TRUE(refuse(grad(limits::logits(1) + 1), kUnknown));
  EXPECT_FALSE(refuse(grad(limits::logits(8)), kUnknown));
  EXPECT_TRUE(refuse(grad(limits::logits(8) + 8), kUnknown));
}

// They ask for every GPU that is given, and tell each refusal once.
TEST_F(LaunchLimits, MetaKernelsAskForGpus) {
  const NormArgs args = norm(65536, DType::BF16);
  ctx.kernels->norm(ctx.kernel_context(), args);  // of no GPU
  LaunchCheck launches{{kHopper, kUnknown}, {}};
  ctx.launches = &launches;
  ctx.kernels->norm(ctx.kernel_context(), args);
  ctx.kernels->norm(ctx.kernel_context(), args);
  ctx.kernels->norm(ctx.kernel_context(), norm(64, DType::BF16));
  ASSERT_EQ(launches.refusals.size(), 1u);
  EXPECT_EQ(launches.refusals[0].limit, LaunchLimit::NormRow);
}

}  // namespace
}  // namespace megatron::testing
