#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "megatron/comm/run_ranks.h"
#include "unit/comm/wrap.h"

namespace megatron {
namespace {

using testing::wrap;

// A value that differs by rank and place and is exact in every dtype.
template <class T>
std::vector<T> numbered(int rank, int64_t n) {
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<T>(static_cast<float>((rank + 1) * (i % 5 + 1))));
  return values;
}

// Sizes on both sides of every border: nothing, fewer elements than ranks, one block, more than the small
// limit.
const int64_t kSizes[] = {0, 1, 3, 64, 1000, 70001};

template <class T>
void check_all_reduce(int ranks) {
  for (int64_t n : kSizes)
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg}) {
      if (op == ReduceOp::Avg && !is_floating(dtype_of<T>())) continue;
      run_ranks(ranks, [&](int rank, ProcessGroup& world) {
        std::vector<T> values = numbered<T>(rank, n);
        world.all_reduce(wrap(values), op).wait();
        for (int64_t i = 0; i < n; ++i) {
          const float unit = static_cast<float>(i % 5 + 1), all = static_cast<float>(ranks * (ranks + 1) / 2);
          const float expected = op == ReduceOp::Sum   ? all * unit
                                 : op == ReduceOp::Max ? static_cast<float>(ranks) * unit
                                 : op == ReduceOp::Min ? unit
                                                       : all * unit / static_cast<float>(ranks);
          ASSERT_EQ(static_cast<float>(values[static_cast<size_t>(i)]),
                    static_cast<float>(static_cast<T>(expected)))
              << name_of(op) << " of " << n << " at " << i;
        }
      });
    }
}

TEST(Collectives, AllReduceOfEveryType) {
  for (int ranks : {1, 2, 4, 7}) {
    check_all_reduce<double>(ranks);
    check_all_reduce<float>(ranks);
    check_all_reduce<bf16>(ranks);
    check_all_reduce<fp16>(ranks);
    check_all_reduce<int64_t>(ranks);
    check_all_reduce<int32_t>(ranks);
  }
}

// 1e16 + 1 - 1e16 depends on the order of the sum: it must be that of the ranks, every time and on every
// rank.
TEST(Collectives, SumsInRankOrder) {
  const std::vector<double> parts = {1e16, 1.0, -1e16, 1.0};
  const double expected = ((1e16 + 1.0) - 1e16) + 1.0;
  for (int64_t n : {int64_t{8}, int64_t{40000}})
    for (int round = 0; round < 20; ++round)
      run_ranks(4, [&](int rank, ProcessGroup& world) {
        std::vector<double> values(static_cast<size_t>(n), parts[static_cast<size_t>(rank)]);
        world.all_reduce(wrap(values)).wait();
        for (double value : values) ASSERT_EQ(value, expected);
        std::vector<double> all(static_cast<size_t>(4 * n), parts[static_cast<size_t>(rank)]),
            own(static_cast<size_t>(n));
        world.reduce_scatter(wrap(all), wrap(own)).wait();
        for (double value : own) ASSERT_EQ(value, expected);
      });
}

TEST(Collectives, NarrowTypesAreSummedInFloat) {
  run_ranks(4, [](int, ProcessGroup& world) {
    std::vector<bf16> values(3, bf16(1.f / 256));  // 1 + 1/256 would vanish in bf16, four of them do not
    if (world.rank() == 0) values.assign(3, bf16(1.f));
    world.all_reduce(wrap(values)).wait();
    for (bf16 value : values) EXPECT_EQ(static_cast<float>(value), static_cast<float>(bf16(1.f + 3.f / 256)));
  });
}

TEST(Collectives, NansReachEveryRank) {
  run_ranks(3, [](int rank, ProcessGroup& world) {
    for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum}) {
      std::vector<float> values(4, static_cast<float>(rank));
      values[static_cast<size_t>(rank)] = std::numeric_limits<float>::quiet_NaN();
      world.all_reduce(wrap(values), op).wait();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(values[static_cast<size_t>(i)]));
      EXPECT_FALSE(std::isnan(values[3]));
    }
  });
}

TEST(Collectives, GatherAndScatterUndoEachOther) {
  for (int ranks : {1, 2, 5})
    for (int64_t n : kSizes)
      run_ranks(ranks, [&](int rank, ProcessGroup& world) {
        std::vector<int32_t> own = numbered<int32_t>(rank, n), all(static_cast<size_t>(ranks * n)),
                             back(own.size());
        world.all_gather(wrap(own), wrap(all)).wait();
        for (int r = 0; r < ranks; ++r) {
          const std::vector<int32_t> part = numbered<int32_t>(r, n);
          ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + r * n));
        }
        world.reduce_scatter(wrap(all), wrap(back), ReduceOp::Max).wait();
        EXPECT_EQ(back, own);
        world.reduce_scatter(wrap(all), wrap(back)).wait();
        for (size_t i = 0; i < own.size(); ++i) ASSERT_EQ(back[i], own[i] * ranks);
      });
}

TEST(Collectives, InPlaceShares) {
  for (int64_t n : {int64_t{16}, int64_t{30000}})
    run_ranks(4, [&](int rank, ProcessGroup& world) {
      std::vector<float> all(static_cast<size_t>(4 * n), static_cast<float>(rank + 1));
      const Tensor whole = wrap(all), own = whole.slice(0, rank * n, (rank + 1) * n);
      world.reduce_scatter(whole, own).wait();
      world.barrier();
      for (int64_t i = 0; i < 4 * n; ++i)
        ASSERT_EQ(all[static_cast<size_t>(i)], i / n == rank ? 10.f : static_cast<float>(rank + 1));
      world.all_gather(own, whole).wait();
      for (float value : all) ASSERT_EQ(value, 10.f);
    });
}

TEST(Collectives, AllToAllEqualParts) {
  for (int64_t n : {int64_t{2}, int64_t{20000}})
    run_ranks(4, [&](int rank, ProcessGroup& world) {
      std::vector<int64_t> in(static_cast<size_t>(4 * n)), out(in.size());
      for (int64_t i = 0; i < 4 * n; ++i) in[static_cast<size_t>(i)] = rank * 10 + i / n;
      world.all_to_all(wrap(in), wrap(out)).wait();
      for (int64_t i = 0; i < 4 * n; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], i / n * 10 + rank);
    });
}

// Rank r sends r + 2·peer rows, so that some are empty and none are equal.
TEST(Collectives, AllToAllUnequalRows) {
  run_ranks(3, [](int rank, ProcessGroup& world) {
    std::vector<int64_t> send, recv;
    for (int peer = 0; peer < 3; ++peer) {
      send.push_back(rank + 2 * peer);
      recv.push_back(peer + 2 * rank);
    }
    const int64_t in_rows = std::accumulate(send.begin(), send.end(), int64_t{0}),
                  out_rows = std::accumulate(recv.begin(), recv.end(), int64_t{0});
    std::vector<float> in, out(static_cast<size_t>(out_rows * 5), -1.f);
    for (int peer = 0; peer < 3; ++peer)
      in.insert(in.end(), static_cast<size_t>(send[static_cast<size_t>(peer)] * 5),
                static_cast<float>(10 * rank + peer));
    world.all_to_all(wrap(in).view({in_rows, 5}), wrap(out).view({out_rows, 5}), send, recv).wait();
    size_t at = 0;
    for (int peer = 0; peer < 3; ++peer)
      for (int64_t i = 0; i < recv[static_cast<size_t>(peer)] * 5; ++i)
        ASSERT_EQ(out[at++], static_cast<float>(10 * peer + rank));
  });
}

TEST(Collectives, BroadcastFromEachRoot) {
  for (int64_t n : kSizes)
    run_ranks(3, [&](int rank, ProcessGroup& world) {
      for (int root = 0; root < 3; ++root) {
        std::vector<int32_t> values = numbered<int32_t>(rank, n);
        world.broadcast(wrap(values), root).wait();
        EXPECT_EQ(values, numbered<int32_t>(root, n));
      }
    });
}

TEST(Messages, KeepTheirOrder) {
  run_ranks(2, [](int rank, ProcessGroup& world) {
    for (int i = 0; i < 50; ++i) {
      std::vector<int32_t> value(100, rank == 0 ? i : -1);
      if (rank == 0)
        world.send(wrap(value), 1).wait();
      else
        world.recv(wrap(value), 0).wait();
      EXPECT_EQ(value, std::vector<int32_t>(100, i));
    }
  });
}

TEST(Messages, ManyUnderWay) {
  run_ranks(2, [](int rank, ProcessGroup& world) {
    std::vector<std::vector<int32_t>> values;
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) values.emplace_back(10, rank == 0 ? i : -1);
    for (auto& value : values)
      works.push_back(rank == 0 ? world.send(wrap(value), 1) : world.recv(wrap(value), 0));
    for (Work& work : works) work.wait();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], std::vector<int32_t>(10, i));
  });
}

TEST(Messages, ExchangeRoundARing) {
  for (int ranks : {1, 2, 5})
    run_ranks(ranks, [&](int rank, ProcessGroup& world) {
      const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
      std::vector<float> out(50000, static_cast<float>(rank)), in(50000);
      for (int round = 0; round < 3; ++round) {
        world
            .batch_send_recv(
                {{Message::Direction::Send, wrap(out), next}, {Message::Direction::Recv, wrap(in), previous}})
            .wait();
        EXPECT_EQ(in, std::vector<float>(50000, static_cast<float>(previous)));
      }
    });
}

// A rank that only asks whether its messages are done may change what it sent as soon as they are.
TEST(Messages, AreDoneOnceTheyHaveBeenRead) {
  run_ranks(2, [](int rank, ProcessGroup& world) {
    const int other = 1 - rank;
    std::vector<float> out(300000), in(300000);
    for (int round = 0; round < 50; ++round) {
      std::fill(out.begin(), out.end(), static_cast<float>(round));
      std::vector<Message> messages = {{Message::Direction::Send, wrap(out), other},
                                       {Message::Direction::Recv, wrap(in), other}};
      if (rank == round % 2) std::swap(messages[0], messages[1]);
      Work work = world.batch_send_recv(messages);
      while (!work.done()) std::this_thread::yield();
      std::fill(out.begin(), out.end(), -1.f);
      EXPECT_EQ(in, std::vector<float>(300000, static_cast<float>(round)));
      world.barrier();
    }
  });
}

// An operation ends once every rank has begun it, also while some rank never waits for it.
TEST(Work, EndsWhileAnotherRankIsBusy) {
  run_ranks(3, [](int rank, ProcessGroup& world) {
    std::vector<float> values(100000, 1.f), token(1);
    Work work = world.all_reduce(wrap(values));
    if (rank == 0) {
      world.recv(wrap(token), 1).wait();  // sent only after rank 1 has its sum
      EXPECT_TRUE(work.done());
      work.wait();
    } else if (rank == 1) {
      work.wait();
      world.send(wrap(token), 0).wait();
    } else {
      while (!work.done()) std::this_thread::yield();
      work.wait();
      work.wait();
    }
    EXPECT_EQ(values, std::vector<float>(100000, 3.f));
  });
}

TEST(Work, SeveralAtOnceInTheirOrder) {
  run_ranks(4, [](int rank, ProcessGroup& world) {
    std::vector<std::vector<float>> buckets(8, std::vector<float>(20000, static_cast<float>(rank)));
    std::vector<Work> works;
    for (auto& bucket : buckets) works.push_back(world.all_reduce(wrap(bucket)));
    for (size_t i = works.size(); i > 0; --i) works[i - 1].wait();
    for (auto& bucket : buckets) EXPECT_EQ(bucket, std::vector<float>(20000, 6.f));
  });
}

TEST(Work, DroppedWorkKeepsItsMemory) {
  auto runtime = make_runtime(kCpu);
  run_ranks(2, [&](int, ProcessGroup& world) {
    auto allocator = std::make_shared<Allocator>(runtime);
    Tensor tensor = Tensor::empty(allocator, {1000}, DType::F32);
    std::fill_n(tensor.data<float>(), 1000, 1.f);
    { Work dropped = world.all_reduce(tensor); }
    tensor = Tensor();
    world.barrier();
  });
}

TEST(Split, ColorsAndKeys) {
  run_ranks(6, [](int rank, ProcessGroup& world) {
    ProcessGroup half = world.split(rank % 2, -rank, "half");
    ASSERT_EQ(half.size(), 3);
    EXPECT_EQ(half.world_ranks(), rank % 2 == 0 ? (std::vector<int>{4, 2, 0}) : (std::vector<int>{5, 3, 1}));
    EXPECT_EQ(half.rank(), 2 - rank / 2);
    EXPECT_EQ(half.name(), "half");
    std::vector<int32_t> value(1, rank);
    half.all_reduce(wrap(value)).wait();
    EXPECT_EQ(value[0], rank % 2 == 0 ? 6 : 9);

    ProcessGroup some = world.split(rank < 4 ? 7 : -1, 0, "some");
    EXPECT_EQ(static_cast<bool>(some), rank < 4);
    if (!some) return;
    ProcessGroup pair = some.split(some.rank() / 2, 0, "pair");
    EXPECT_EQ(pair.world_ranks(), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
  });
}

TEST(SelfGroup, IsAGroupOfOne) {
  const ProcessGroup group = ProcessGroup::self();
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.rank(), 0);
  std::vector<float> in = {1, 2, 3}, out(3);
  group.all_gather(wrap(in), wrap(out)).wait();
  EXPECT_EQ(out, in);
  group.all_reduce(wrap(in), ReduceOp::Avg).wait();
  EXPECT_EQ(out, in);
  std::vector<float> moved(3);
  group.all_to_all(wrap(in), wrap(moved), {3}, {3}).wait();
  EXPECT_EQ(moved, in);
  group.batch_send_recv({{Message::Direction::Send, wrap(in), 0}, {Message::Direction::Recv, wrap(out), 0}})
      .wait();
  group.barrier();
  EXPECT_TRUE(group.split(0, 0, "x"));
  EXPECT_FALSE(group.split(-1, 0, "x"));
  EXPECT_THROW(group.send(wrap(in), 0), CommError);
  group.abort("enough");
  EXPECT_THROW(group.barrier(), CommAborted);
}

TEST(Recordings, AreForNcclOrARankAlone) {
  const ProcessGroup self = ProcessGroup::self();
  EXPECT_EQ(self.cannot_capture(), "");
  const std::unique_ptr<CapturedOps> ops = self.begin_capture();
  ops->end();
  int replays = 0;
  ops->replay([&] { ++replays; });
  EXPECT_EQ(replays, 1);
  run_ranks(2, [](int, ProcessGroup& world) {
    EXPECT_NE(world.cannot_capture(), "");
    EXPECT_THROW((void)world.begin_capture(), Error);
  });
}

TEST(MetaTensors, MoveNothing) {
  run_ranks(2, [](int, ProcessGroup& world) {
    auto allocator = std::make_shared<Allocator>(make_runtime(kMeta));
    const Tensor small = Tensor::empty(allocator, {10}, DType::BF16),
                 big = Tensor::empty(allocator, {20}, DType::BF16);
    world.all_gather(small, big).wait();
    world.reduce_scatter(big, small).wait();
    world.all_reduce(big).wait();
  });
}

}  // namespace
}  // namespace megatron
