#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/launch.h"
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
                      .batch_send_recv({{Message::Direction::Send, x, (group.rank() + 1) % size},
                                        {Message::Direction::Recv, in, (group.rank() + size - 1) % size}})
                      .wait();
                  for (float value : ctx.to_vector<float>(in))
                    ASSERT_EQ(value, 2.f * static_cast<float>(size));
                }
              world.barrier();
            },
            {std::chrono::seconds(120)});
}

TEST(Nccl, EveryType) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  const int ranks = cuda_device_count();
  run_ranks(ranks, [&](int rank, ProcessGroup& control) {
    RankContext ctx(Device{DeviceType::Cuda, static_cast<int8_t>(rank)}, 1, rank);
    ProcessGroup world = nccl_group(control, std::chrono::seconds(60));
    world.attach(ctx);
    for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32})
      for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min}) {
        Tensor x = ctx.full({100}, dtype, 1), wide = ctx.empty({100}, DType::F64);
        world.all_reduce(x, op).wait();
        ctx.kernels->copy(ctx.kernel_context(), {x, wide});
        for (double value : ctx.to_vector<double>(wide))
          ASSERT_EQ(value, op == ReduceOp::Sum ? ranks : 1) << name_of(dtype);
      }
    world.all_reduce(ctx.empty({0}, DType::F32)).wait();
  });
}

// Operations that are not waited for, or only later, keep their memory and their order.
TEST(Nccl, WorksEndInAnyOrder) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  run_ranks(1, [](int, ProcessGroup& control) {
    RankContext ctx(Device{DeviceType::Cuda, 0});
    ProcessGroup world = nccl_group(control, std::chrono::seconds(60));
    world.attach(ctx);
    for (int round = 0; round < 50; ++round) {
      Tensor a = ctx.full({100000}, DType::F32, round), b = ctx.empty({100000}, DType::F32);
      Work first = world.all_gather(a, b), second = world.all_reduce(b);
      (void)world.all_reduce(ctx.full({50000}, DType::F32, 7));  // goes with its Work
      second.wait();
      first.wait();
      ASSERT_EQ(ctx.to_vector<float>(b)[99999], static_cast<float>(round));
    }
  });
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

// A rank leaves with operations under way: communicators end without waiting for them.
TEST(Nccl, ARankThatThrowsEnds) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  const auto begin = std::chrono::steady_clock::now();
  Launch launch({.ranks = cuda_device_count(), .comm = Connection::Nccl, .cuda = true});
  try {
    launch.run([](int rank, ProcessGroup& world) {
      RankContext ctx(Device{DeviceType::Cuda, static_cast<int8_t>(rank)}, 1, rank);
      world.attach(ctx);
      ProcessGroup part = world.split(0, 0, "part");
      Work open = part.all_reduce(ctx.zeros({1000}, DType::F32));
      fail("disk full");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("disk full"), std::string::npos) << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// Ranks i and i + n are on GPU i: threads move their memory, and --comm nccl is refused.
TEST(Nccl, RanksThatShareAGpuAreThreads) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: NCCL is NOT tested";
  if (!nccl_is_built_in()) GTEST_SKIP() << "built without NCCL";
  const int gpus = cuda_device_count();
  const auto sum = [&](int rank, ProcessGroup& world) {
    RankContext ctx(Device{DeviceType::Cuda, static_cast<int8_t>(rank % gpus)}, 1, rank);
    world.attach(ctx);
    ProcessGroup part = world.split(rank % gpus, 0, "those of a GPU");
    Tensor x = ctx.full({1000}, DType::F32, 1), y = ctx.full({1000}, DType::F32, 1);
    world.all_reduce(x).wait();
    part.all_reduce(y).wait();
    EXPECT_EQ(ctx.to_vector<float>(x)[999], 2.f * static_cast<float>(gpus));
    EXPECT_EQ(ctx.to_vector<float>(y)[999], 2.f);
  };
  Launch({.ranks = 2 * gpus, .cuda = true}).run(sum);
  EXPECT_THROW(Launch({.ranks = 2 * gpus, .comm = Connection::Nccl, .cuda = true}).run(sum), ConfigError);
}

}  // namespace
}  // namespace megatron
