#include "megatron/kernels/cudnn_support.h"

#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

struct Shape4 {
  int64_t batch, heads, kv_heads, queries, keys, d;
};

AttentionBackwardArgs arguments(RankContext& ctx, const Shape4& s, bool deterministic) {
  auto make = [&](int64_t length, int64_t heads) {
    return ctx.empty({s.batch * length, heads, s.d}, DType::BF16);
  };
  AttentionBackwardArgs args{.grad_o = make(s.queries, s.heads),
                             .dq = make(s.queries, s.heads),
                             .dk = make(s.keys, s.kv_heads),
                             .dv = make(s.keys, s.kv_heads),
                             .deterministic = deterministic};
  args.forward = {.q = args.dq, .k = args.dk, .v = args.dv, .o = args.grad_o, .batch = s.batch};
  return args;
}

// What cuDNN 9.14 asks for on an H200 (2026-11-16).
TEST(CudnnSupport, ScratchIsWhatTheLibraryTakes) {
  struct Known {
    Shape4 shape;
    double any_order, fixed_order;
  };
  const Known known[] = {
      {{4, 32, 8, 4096, 4096, 64}, 270532864, 4431282432},
      {{4, 32, 32, 4096, 4096, 64}, 136315136, 4297064704},
      {{1, 32, 8, 4096, 4096, 64}, 67633408, 1107820800},
      {{4, 16, 8, 4096, 4096, 64}, 135266560, 2215641344},
      {{4, 32, 8, 8192, 8192, 64}, 541065472, 17452499200},
      {{4, 32, 8, 1024, 1024, 64}, 67633408, 302514432},
      {{32, 12, 12, 1024, 1024, 64}, 102236416, 806879488},
      {{4, 32, 8, 4000, 4000, 64}, 264192288, 4360978720},
      {{4, 32, 8, 300, 300, 64}, 19814688, 41441568},
      {{4, 32, 8, 4096, 4096, 128}, 538968320, 4565500160},
      {{4, 32, 32, 2048, 2048, 128}, 135266560, 1074790656},
      {{4, 32, 8, 1000, 1000, 128}, 131584288, 334483744},
      {{2, 32, 8, 2048, 4096, 128}, 201851136, 1208484096},
      {{2, 32, 8, 2048, 4096, 64}, 101187840, 1141375232},
  };
  RankContext meta(kMeta);
  for (const Known& k : known) {
    SCOPED_TRACE(fmt::format("{} x {}, {}/{} heads of {}", k.shape.batch, k.shape.queries, k.shape.heads,
                             k.shape.kv_heads, k.shape.d));
    EXPECT_NEAR(static_cast<double>(cudnn_scratch_bytes(arguments(meta, k.shape, false))), k.any_order, 512);
    EXPECT_NEAR(static_cast<double>(cudnn_scratch_bytes(arguments(meta, k.shape, true))), k.fixed_order, 512);
  }
}

TEST(CudnnSupport, NeedsNothingWhereOurKernelsRun) {
  RankContext meta(kMeta);
  EXPECT_EQ(cudnn_scratch_bytes(arguments(meta, {4, 32, 8, 200, 200, 64}, true)), 0u);
  EXPECT_EQ(cudnn_scratch_bytes(arguments(meta, {4, 32, 8, 4096, 4096, 40}, true)), 0u);
  AttentionBackwardArgs args = arguments(meta, {4, 32, 8, 4096, 4096, 64}, true);
  args.forward.softcap = 30;
  EXPECT_EQ(cudnn_scratch_bytes(args), 0u);
  // Packed sequences, each with room for the longest.
  args = arguments(meta, {4, 32, 8, 8192, 8192, 64}, true);
  args.forward.cu_queries = args.forward.cu_keys = meta.empty({5}, DType::I32);
  args.forward.max_queries = args.forward.max_keys = 8192;
  EXPECT_EQ(cudnn_scratch_bytes(args), 0u);
  args.deterministic = false;
  EXPECT_GT(cudnn_scratch_bytes(args), 0u);
}

TEST(CudnnSupport, SaysWhyItIsNotAsked) {
  RankContext meta(kMeta);
  const AttentionBackwardArgs args = arguments(meta, {4, 32, 8, 4096, 4096, 64}, true);
  EXPECT_EQ(cudnn_support(args).refused, "");
  const auto why = [&](auto&& change) {
    AttentionBackwardArgs changed = args;
    change(changed.forward);
    return cudnn_support(changed).refused;
  };
  EXPECT_EQ(why([&](AttentionArgs& a) { a.sinks = meta.empty({32}, DType::BF16); }),
            "sinks take part in the softmax");
  EXPECT_EQ(why([](AttentionArgs& a) { a.softcap = 50; }), "scores are capped");
  EXPECT_EQ(why([](AttentionArgs& a) { a.dropout = 0.1; }), "some of it is dropped out");
  EXPECT_EQ(why([](AttentionArgs& a) { a.window_left = 127; }), "");
  EXPECT_EQ(why([](AttentionArgs& a) { a.causal = false; }), "");
  EXPECT_EQ(why([](AttentionArgs& a) {
              a.causal = false;
              a.window_right = 8;
            }),
            "its mask is neither full nor causal from the last key on");
  EXPECT_EQ(why([&](AttentionArgs& a) {
              a.q = meta.empty({4 * 4096, 32, 64}, DType::F32);
            }),
            "its numbers have more than 16 bits");
  EXPECT_EQ(cudnn_support(arguments(meta, {4, 32, 8, 200, 200, 64}, true)).refused,
            "sequences are shorter than 256 tokens");
  EXPECT_EQ(cudnn_support(arguments(meta, {4, 32, 8, 4096, 4096, 40}, true)).refused,
            "head_dim is no multiple of 16 from 64 to 128, nor 256");
  EXPECT_EQ(cudnn_support(arguments(meta, {4, 32, 8, 4096, 4096, 256}, true)).refused, "");
  // Latent attention has keys of 192 and values of 128.
  const auto latent = [&](int64_t d, int64_t dv) {
    AttentionBackwardArgs args = arguments(meta, {4, 32, 32, 4096, 4096, d}, true);
    args.forward.v = args.dv = args.forward.o = args.grad_o = meta.empty({4 * 4096, 32, dv}, DType::BF16);
    return cudnn_support(args).refused;
  };
  EXPECT_EQ(latent(192, 128), "");
  EXPECT_EQ(latent(96, 64), "keys and values differ in width, and not as 192 and 128");
  AttentionBackwardArgs with_gradient = args;
  with_gradient.dsinks = meta.empty({32}, DType::F32);
  EXPECT_FALSE(cudnn_support(with_gradient).takes());
}

// A plan knows it: the meta device takes as much for the time of the kernel.
TEST(CudnnSupport, TheMetaDeviceTakesIt) {
  RankContext meta(kMeta);
  AttentionBackwardArgs args = arguments(meta, {4, 32, 8, 4096, 4096, 64}, true);
  meta.kernels->attention_backward(meta.kernel_context(), args);
  const MemoryUse held = meta.allocator->statistics().by_tag[static_cast<int>(MemoryTag::Workspace)];
  EXPECT_GE(held.peak, cudnn_scratch_bytes(args));
  EXPECT_LE(held.peak, Allocator::rounded(cudnn_scratch_bytes(args)));
  EXPECT_EQ(held.current, 0u);
}

}  // namespace
}  // namespace megatron
