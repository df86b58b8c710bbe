#include <gtest/gtest.h>

#include <thread>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/launch.h"
#include "support/temp_dir.h"

// Processes, which are threads here and reach each other by TCP alone, share a GPU: its memory goes through
// the host's.
namespace megatron {
namespace {

void exercise(RankContext& ctx, const ProcessGroup& group, DType dtype, int64_t n) {
  const int size = group.size(), rank = group.rank();
  const auto value = [&](const Tensor& x, int64_t at) {
    Tensor wide = ctx.empty(x.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {x, wide});
    return ctx.to_vector<double>(wide)[static_cast<size_t>(at)];
  };
  Tensor x = ctx.full({n}, dtype, rank + 1);
  group.all_reduce(x).wait();
  EXPECT_EQ(value(x, n - 1), size * (size + 1) / 2);
  Tensor part = ctx.full({n}, dtype, rank), all = ctx.empty({n * size}, dtype);
  group.all_gather(part, all).wait();
  for (int r = 0; r < size; ++r) EXPECT_EQ(value(all, r * n), r);
  Tensor swapped = ctx.empty({n * size}, dtype);
  group.all_to_all(all, swapped).wait();
  EXPECT_EQ(value(swapped, 0), rank);
  group.reduce_scatter(all, part).wait();
  EXPECT_EQ(value(part, n - 1), size * rank);
  Tensor sent = ctx.full({n}, dtype, 10 + rank), came = ctx.empty({n}, dtype);
  group
      .batch_send_recv({{Message::Direction::Send, sent, (rank + 1) % size},
                        {Message::Direction::Recv, came, (rank + size - 1) % size}})
      .wait();
  EXPECT_EQ(value(came, 0), 10 + (rank + size - 1) % size);
  group.broadcast(came, 0).wait();
  EXPECT_EQ(value(came, n - 1), 10 + size - 1);
}

TEST(CudaProcessGroups, MemoryGoesThroughTheHost) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: staging is NOT tested";
  testing::TempDir folder;
  std::vector<std::thread> processes;
  for (int process = 0; process < 2; ++process)
    processes.emplace_back([&, process] {
      Launch launch(
          {.ranks = 2,
           .cuda = true,
           .timeout = std::chrono::seconds(60),
           .place = {.process = process, .processes = 2, .store_folder = folder.path() + "/store"}});
      launch.run([&](int rank, ProcessGroup& world) {
        RankContext ctx(Device{DeviceType::Cuda, 0}, 1, rank);
        world.attach(ctx);
        const ProcessGroup pair = world.split(rank % 2, rank, "pair");
        for (int64_t n : {int64_t{1}, int64_t{70001}, int64_t{3} << 20})
          for (const ProcessGroup& group : {world, pair}) {
            for (DType dtype : {DType::F32, DType::BF16, DType::I32}) exercise(ctx, group, dtype, n);
          }
      });
    });
  for (std::thread& thread : processes) thread.join();
}

}  // namespace
}  // namespace megatron
