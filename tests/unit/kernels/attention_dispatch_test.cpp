#include "megatron/kernels/attention_dispatch.h"

#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

AttentionArgs arguments(RankContext& ctx, int64_t batch, int64_t length) {
  return {.q = ctx.empty({batch * length, 8, 64}, DType::BF16),
          .k = ctx.empty({batch * length, 2, 64}, DType::BF16),
          .v = ctx.empty({batch * length, 2, 64}, DType::BF16),
          .batch = batch};
}

TEST(AttentionDispatchLog, OneForEachShapeAndChoice) {
  RankContext meta(kMeta);
  AttentionDispatchLog log;
  AttentionArgs args = arguments(meta, 2, 512);
  for (int layer = 0; layer < 3; ++layer) log.add(args, false, "cuDNN", "");
  log.add(args, true, "cuDNN", "");
  EXPECT_EQ(log.since(0).size(), 2u);
  EXPECT_EQ(log.since(0)[0].line(),
            "attention of 2 x 512 tokens, 8 heads of head_dim 64 on 2 KV heads, causal, bf16: cuDNN");
  args.window_left = 127;
  args.sinks = meta.empty({8}, DType::BF16);
  log.add(args, true, "own", "sinks take part in the softmax");
  ASSERT_EQ(log.since(2).size(), 1u);
  EXPECT_EQ(log.since(2)[0].line(),
            "gradient of attention of 2 x 512 tokens, 8 heads of head_dim 64 on 2 KV heads, causal, in a "
            "window of 128, with sinks, bf16: own, for sinks take part in the softmax");
  EXPECT_EQ(log.last(true).kernel, "own");
  EXPECT_EQ(log.last(false).kernel, "cuDNN");
  EXPECT_TRUE(log.since(3).empty());
}

// Their number and lengths differ from batch to batch.
TEST(AttentionDispatchLog, PackedSequencesAreOneShape) {
  RankContext meta(kMeta);
  AttentionDispatchLog log;
  AttentionArgs args = arguments(meta, 1, 1024);
  for (int64_t batch = 2; batch < 6; ++batch) {
    args.batch = batch;
    args.cu_queries = args.cu_keys = meta.empty({batch + 1}, DType::I32);
    args.max_queries = args.max_keys = 1024 / batch;
    log.add(args, false, "cuDNN", "");
  }
  ASSERT_EQ(log.since(0).size(), 1u);
  EXPECT_EQ(log.since(0)[0].shape,
            "1024 tokens of packed sequences, 8 heads of head_dim 64 on 2 KV heads, causal, bf16");
}

}  // namespace
}  // namespace megatron
