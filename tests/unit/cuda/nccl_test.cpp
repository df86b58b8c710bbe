#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/nccl_group.h"
#include "megatron/comm/run_ranks.h"

namespace megatron {
namespace {

// As many ranks as there are GPUs: one shows that NCCL starts and that every call is accepted, more that they
// add up.
TEST(Nccl, EveryCollective) {
  const int ranks = cuda_device_count();
  if (ranks == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  run_ranks(ranks,
            [&](int rank, ProcessGroup& control) {
              RankContext ctx(Device{DeviceType::Cuda, static_cast<int8_t>(rank)}, 1, rank);
              ProcessGroup world = nccl_group(control, std::chrono::seconds(60));
              world.attach(ctx);
              ProcessGroup half = world.split(rank % 2, rank, "half");
              for (const ProcessGroup& group : {world, half})
                for (int64_t n : {int64_t{1}, int64_t{1000}, int64_t{70001}}) {
                  const int size = group.size();
                  Tensor x = ctx.full({n}, DType::F32, 2);
                  group.all_reduce(x).wait();
                  for (float value : ctx.to_vector<float>(x))
                    ASSERT_EQ(value, 2.f * static_cast<float>(size));
                  Tensor all = ctx.full({n * size}, DType::BF16, 3), part = ctx.empty({n}, DType::BF16);
                  group.reduce_scatter(all, part).wait();
                  group.all_gather(part, all).wait();
                  Tensor wide = ctx.empty({n * size}, DType::F32);
                  ctx.kernels->copy(ctx.kernel_context(), {all, wide});
                  for (float value : ctx.to_vector<float>(wide))
                    ASSERT_EQ(value, 3.f * static_cast<float>(size));
                  Tensor swapped = ctx.empty({n * size}, DType::F32);
                  group.all_to_all(wide, swapped).wait();
                  group.broadcast(swapped, 0).wait();
                  for (float value : ctx.to_vector<float>(swapped))
                    ASSERT_EQ(value, 3.f * static_cast<float>(size));
                  Tensor in = ctx.empty({n}, DType::F32);
                  group
                      .exchange({{Message::Direction::Send, x, (group.rank() + 1) % size},
                                 {Message::Direction::Recv, in, (group.rank() + size - 1) % size}})
                      .wait();
                  for (float value : ctx.to_vector<float>(in))
                    ASSERT_EQ(value, 2.f * static_cast<float>(size));
                }
              world.barrier();
            },
            {std::chrono::seconds(120)});
}

TEST(Nccl, AStoppedWorldRefuses) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  EXPECT_THROW(run_ranks(1,
                         [](int, ProcessGroup& control) {
                           RankContext ctx(Device{DeviceType::Cuda, 0});
                           ProcessGroup world = nccl_group(control, std::chrono::seconds(60));
                           world.attach(ctx);
                           world.abort("enough");
                           world.all_reduce(ctx.zeros({4}, DType::F32)).wait();
                         }),
               CommAborted);
}

}  // namespace
}  // namespace megatron
