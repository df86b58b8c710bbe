#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/run_ranks.h"

// Ranks that are threads and share one GPU: every collective moves GPU memory in the order of the ranks'
// streams.
namespace megatron {
namespace {

class CudaThreadGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: collectives on GPU memory are NOT tested";
  }
};

void on_gpu(int ranks, const std::function<void(RankContext&, ProcessGroup&)>& fn) {
  run_ranks(ranks,
            [&](int rank, ProcessGroup& world) {
              RankContext ctx(Device{DeviceType::Cuda, 0}, 1, rank);
              world.attach(ctx);
              fn(ctx, world);
            },
            {std::chrono::seconds(60)});
}

// Differs by rank and place and is exact in every dtype.
Tensor numbered(RankContext& ctx, int64_t n, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>((ctx.rank + 1) * (i % 5 + 1)));
  Tensor wide = ctx.from_vector(values, {n}), result = ctx.empty({n}, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, result});
  return result;
}

std::vector<double> values(RankContext& ctx, const Tensor& tensor) {
  Tensor wide = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
  return ctx.to_vector<double>(wide);
}

const int64_t kSizes[] = {0, 1, 3, 64, 1000, 70001};

TEST_F(CudaThreadGroups, AllReduceOfEveryType) {
  for (int ranks : {1, 2, 5})
    on_gpu(ranks, [&](RankContext& ctx, ProcessGroup& world) {
      for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32})
        for (int64_t n : kSizes)
          for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min}) {
            Tensor x = numbered(ctx, n, dtype);
            world.all_reduce(x, op).wait();
            std::vector<double> got = values(ctx, x);
            for (int64_t i = 0; i < n; ++i) {
              double unit = static_cast<double>(i % 5 + 1);
              double expected = op == ReduceOp::Sum   ? ranks * (ranks + 1) / 2 * unit
                                : op == ReduceOp::Max ? ranks * unit
                                                      : unit;
              ASSERT_EQ(got[static_cast<size_t>(i)], expected) << name_of(op) << " of " << name_of(dtype);
            }
          }
    });
}

// 1e16 + 1 - 1e16 + 1 depends on the order of the sum.
TEST_F(CudaThreadGroups, SumsInRankOrder) {
  const std::vector<double> parts = {1e16, 1.0, -1e16, 1.0};
  const double expected = ((1e16 + 1.0) - 1e16) + 1.0;
  on_gpu(4, [&](RankContext& ctx, ProcessGroup& world) {
    for (int round = 0; round < 20; ++round) {
      Tensor all = ctx.full({4, 40000}, DType::F64, parts[static_cast<size_t>(ctx.rank)]),
             own = ctx.empty({40000}, DType::F64);
      world.reduce_scatter(all, own).wait();
      world.all_reduce(all).wait();
      for (const Tensor& tensor : {all, own})
        for (double value : values(ctx, tensor)) ASSERT_EQ(value, expected);
    }
  });
}

TEST_F(CudaThreadGroups, MovesParts) {
  on_gpu(3, [&](RankContext& ctx, ProcessGroup& world) {
    for (int64_t n : kSizes) {
      Tensor own = numbered(ctx, n, DType::I32), all = ctx.empty({3 * n}, DType::I32);
      world.all_gather(own, all).wait();
      std::vector<double> gathered = values(ctx, all);
      for (int64_t i = 0; i < 3 * n; ++i)
        ASSERT_EQ(gathered[static_cast<size_t>(i)], static_cast<double>((i / n + 1) * (i % n % 5 + 1)));
      Tensor swapped = ctx.empty({3 * n}, DType::I32);
      world.all_to_all(all, swapped).wait();
      std::vector<double> parts = values(ctx, swapped);
      for (int64_t i = 0; i < 3 * n; ++i)
        ASSERT_EQ(parts[static_cast<size_t>(i)], static_cast<double>((ctx.rank + 1) * (i % n % 5 + 1)));
      for (int root = 0; root < 3; ++root) {
        Tensor x = numbered(ctx, n, DType::F32);
        world.broadcast(x, root).wait();
        std::vector<double> got = values(ctx, x);
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<double>((root + 1) * (i % 5 + 1)));
      }
      Tensor in = ctx.empty({n}, DType::I32);
      world
          .batch_send_recv({{Message::Direction::Send, own, (ctx.rank + 1) % 3},
                            {Message::Direction::Recv, in, (ctx.rank + 2) % 3}})
          .wait();
      std::vector<double> got = values(ctx, in);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<double>(((ctx.rank + 2) % 3 + 1) * (i % 5 + 1)));
    }
  });
}

// Kernels before and after a collective, without the host ever waiting for the GPU in between.
TEST_F(CudaThreadGroups, OrderedWithTheRanksOwnWork) {
  on_gpu(4, [&](RankContext& ctx, ProcessGroup& world) {
    Tensor x = ctx.full({1 << 20}, DType::F32, 1);
    for (int round = 0; round < 30; ++round) {
      Tensor scaled = ctx.empty_like(x);  // freed each round: its memory comes back in stream order
      ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 0.25, .a = x, .out = scaled});
      world.all_reduce(scaled).wait();
      ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1, .a = scaled, .out = x});
    }
    for (float value : ctx.to_vector<float>(x)) ASSERT_EQ(value, 1.f);
  });
}

TEST_F(CudaThreadGroups, DroppedWorkKeepsItsMemory) {
  on_gpu(2, [&](RankContext& ctx, ProcessGroup& world) {
    for (int round = 0; round < 50; ++round) {
      Tensor x = ctx.full({1 << 18}, DType::F32, 1);
      { Work dropped = world.all_reduce(x); }
      x = ctx.full({1 << 18}, DType::F32, 5);  // may lie where the dropped tensor was
      world.barrier();
      for (float value : ctx.to_vector<float>(x)) ASSERT_EQ(value, 5.f);
    }
  });
}

TEST_F(CudaThreadGroups, AskingForTheStreamHelps) {
  try {
    run_ranks(2, [](int rank, ProcessGroup& world) {
      RankContext ctx(Device{DeviceType::Cuda, 0}, 1, rank);
      world.all_reduce(ctx.zeros({4}, DType::F32)).wait();
    });
    FAIL() << "moved GPU memory without a stream";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("world.attach(ctx)"), std::string::npos) << error.what();
  }
}

TEST_F(CudaThreadGroups, AGroupOfOneCopies) {
  RankContext ctx(Device{DeviceType::Cuda, 0});
  ProcessGroup group = ProcessGroup::self();
  group.attach(ctx);
  Tensor in = ctx.full({1000}, DType::F32, 3), out = ctx.zeros({1000}, DType::F32);
  group.alone("part").all_gather(in, out).wait();
  for (float value : ctx.to_vector<float>(out)) ASSERT_EQ(value, 3.f);
}

}  // namespace
}  // namespace megatron
