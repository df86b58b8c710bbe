#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "megatron/comm/nccl_group.h"
#include "nccl/ranks.h"
#include "support/stacks.h"

// Runs in each of several processes, with one rank and one GPU each, which NCCL connects. Where there are
// fewer GPUs than processes, these share them: NCCL is told that each is a host of its own, and reaches the
// others by sockets.
namespace megatron::testing {

Launch* launch = nullptr;
Device gpu;

void on_gpus(const OnRank& fn) {
  launch->run([&](int rank, ProcessGroup& world) {
    RankContext ctx(gpu, 1, rank);
    world.attach(ctx);
    fn(ctx, world);
  });
}

// A layout whose ranks were stopped ends the test: so does their world.
void named(const std::string& layout, const std::function<void()>& check) {
  SCOPED_TRACE(layout);
  const auto begin = std::chrono::steady_clock::now();
  try {
    check();
  } catch (const std::exception& error) {
    FAIL() << error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!launch->is_first()) return;
  fmt::print("{:5.1f} s  {}\n", took.count(), layout);
  std::fflush(stdout);  // should a later one not end
}

void expect_end(const OnRank& fn, std::initializer_list<const char*> parts) {
  if (launch->world_size() != 3) GTEST_SKIP() << "made for 3 ranks";
  const auto begin = std::chrono::steady_clock::now();
  std::string told;
  try {
    on_gpus(fn);
  } catch (const std::exception& error) {
    told = error.what();
  }
  if (launch->is_first()) fmt::print("{}\n", told);
  for (const char* part : parts) EXPECT_NE(told.find(part), std::string::npos) << part << " in: " << told;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

namespace {

constexpr int kNotTested = 77;

// Differs by rank and place and is exact in every dtype.
double number(int rank, int64_t i) { return static_cast<double>((rank + 1) * (i % 5 + 1)); }

Tensor numbered(RankContext& ctx, int rank, int64_t n, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(number(rank, i));
  Tensor wide = ctx.from_vector(values, {n}), result = ctx.empty({n}, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, result});
  return result;
}

void expect_values(RankContext& ctx, const Tensor& tensor, const std::function<double(int64_t)>& expected,
                   const char* what) {
  Tensor wide = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
  const std::vector<double> values = ctx.to_vector<double>(wide);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], expected(static_cast<int64_t>(i)))
        << what << " of " << name_of(tensor.dtype()) << ", element " << i;
}

void reductions(RankContext& ctx, const ProcessGroup& group, DType dtype, int64_t n) {
  const int size = group.size(), rank = group.rank();
  const double ranks = size * (size + 1) / 2;  // the sum of rank + 1
  for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min}) {
    Tensor all = numbered(ctx, rank, n, dtype);
    group.all_reduce(all, op).wait();
    const double factor = op == ReduceOp::Sum ? ranks : op == ReduceOp::Max ? size : 1;
    expect_values(
        ctx, all, [&](int64_t i) { return factor * number(0, i); }, "all_reduce");
  }
  Tensor parts = numbered(ctx, rank, n * size, dtype), part = ctx.empty({n}, dtype);
  group.reduce_scatter(parts, part).wait();
  expect_values(
      ctx, part, [&](int64_t i) { return ranks * number(0, rank * n + i); }, "reduce_scatter");
}

void moves(RankContext& ctx, const ProcessGroup& group, DType dtype, int64_t n) {
  const int size = group.size(), rank = group.rank();
  Tensor own = numbered(ctx, rank, n, dtype), all = ctx.empty({n * size}, dtype),
         swapped = ctx.empty({n * size}, dtype);
  group.all_gather(own, all).wait();
  const auto from_each = [&](int64_t i) { return number(static_cast<int>(i / n), i % n); };
  expect_values(ctx, all, from_each, "all_gather");
  Tensor outgoing = numbered(ctx, rank, n * size, dtype);
  group.all_to_all(outgoing, swapped).wait();
  const auto my_parts = [&](int64_t i) { return number(static_cast<int>(i / n), rank * n + i % n); };
  expect_values(ctx, swapped, my_parts, "all_to_all");
  for (int root = 0; root < size; ++root) {
    Tensor x = numbered(ctx, rank, n, dtype);
    group.broadcast(x, root).wait();
    expect_values(
        ctx, x, [&](int64_t i) { return number(root, i); }, "broadcast");
  }
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  Tensor from = ctx.empty({n}, dtype), back = ctx.empty({n}, dtype);
  using enum Message::Direction;
  group.batch_send_recv({{Send, own, next}, {Recv, from, previous}}).wait();
  expect_values(
      ctx, from, [&](int64_t i) { return number(previous, i); }, "exchange");
  group.batch_send_recv({{Send, from, previous}, {Recv, back, next}}).wait();
  expect_values(
      ctx, back, [&](int64_t i) { return number(rank, i); }, "exchange back");
}

// Rank r sends r + 2·peer rows to each, none to some; the rows tell where they come from.
void uneven(RankContext& ctx, const ProcessGroup& group, DType dtype) {
  constexpr int64_t kWidth = 3;
  const int size = group.size(), rank = group.rank();
  std::vector<int64_t> send, recv;
  std::vector<double> rows, expected;
  for (int peer = 0; peer < size; ++peer) {
    send.push_back(rank + 2 * peer);
    recv.push_back(peer + 2 * rank);
    rows.insert(rows.end(), static_cast<size_t>(send.back() * kWidth), 10 * rank + peer);
    expected.insert(expected.end(), static_cast<size_t>(recv.back() * kWidth), 10 * peer + rank);
  }
  const auto count = [](const std::vector<double>& values) {
    return static_cast<int64_t>(values.size()) / kWidth;
  };
  Tensor wide = ctx.from_vector(rows, {count(rows), kWidth}), in = ctx.empty(wide.shape(), dtype),
         out = ctx.empty({count(expected), kWidth}, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, in});
  group.all_to_all(in, out, send, recv).wait();
  const auto at = [&](int64_t i) { return expected[static_cast<size_t>(i)]; };
  expect_values(ctx, out.view({out.numel()}), at, "all_to_all of unequal parts");
}

TEST(NcclProcesses, EveryCollective) {
  on_gpus([](RankContext& ctx, ProcessGroup& world) {
    const ProcessGroup half = world.split(world.rank() % 2, -world.rank(), "half"),
                       some = world.split(world.rank() == 0 ? -1 : 3, 0, "some");
    EXPECT_EQ(static_cast<bool>(some), world.rank() != 0);
    for (const ProcessGroup& group : {world, half, some}) {
      if (!group) continue;
      for (DType dtype : {DType::F32, DType::BF16, DType::I32}) {
        for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{70001}}) {
          reductions(ctx, group, dtype, n);
          moves(ctx, group, dtype, n);
        }
        uneven(ctx, group, dtype);
      }
      group.barrier();
    }
    for (DType dtype : {DType::F64, DType::F16, DType::I64}) reductions(ctx, world, dtype, 1000);
    Tensor x = ctx.full({1000}, DType::F32, world.rank());
    world.all_reduce(x, ReduceOp::Avg).wait();
    expect_values(
        ctx, x, [&](int64_t) { return (world.size() - 1) / 2.0; }, "mean");
  });
}

// Operations of two groups under way at once, waited for in another order than they began, or not at all.
TEST(NcclProcesses, WorksEndInAnyOrder) {
  on_gpus([](RankContext& ctx, ProcessGroup& world) {
    const ProcessGroup other = world.split(0, world.rank(), "other");
    for (int round = 0; round < 10; ++round) {
      Tensor a = numbered(ctx, world.rank(), 40000, DType::F32), b = numbered(ctx, 0, 40000, DType::F32),
             all = ctx.empty({40000 * world.size()}, DType::F32);
      Work first = world.all_reduce(a), second = other.all_reduce(b);
      { Work dropped = world.all_reduce(ctx.full({50000}, DType::F32, 7)); }
      second.wait();
      first.wait();
      const double ranks = world.size() * (world.size() + 1) / 2;
      expect_values(
          ctx, a, [&](int64_t i) { return ranks * number(0, i); }, "first");
      expect_values(
          ctx, b, [&](int64_t i) { return world.size() * number(0, i); }, "second");
      Work third = world.all_gather(a, all);
      while (!third.done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
      third.wait();
      expect_values(
          ctx, all, [&](int64_t i) { return ranks * number(0, i % 40000); }, "third");
    }
  });
}

const Layout kTwo[] = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2_sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp2_vpp2", .pp = 2, .vpp = 2},
    {.name = "dp2", .dp = 2},
    {.name = "dp2_zero1", .dp = 2, .change = [](Config& c) { sharded(c, 1); }},
    {.name = "dp2_zero2", .dp = 2, .change = [](Config& c) { sharded(c, 2); }},
    {.name = "dp2_zero3", .dp = 2, .change = [](Config& c) { sharded(c, 3); }},
    {.name = "cp2", .cp = 2},
    {.name = "cp2_a2a", .cp = 2, .cp_kinds = {"a2a"}},
};
const Layout kFour[] = {
    {.name = "tp2_sp_pp2", .tp = 2, .pp = 2, .sp = true},
    {.name = "tp2_dp2_zero3", .tp = 2, .dp = 2, .change = [](Config& c) { sharded(c, 3); }},
};

constexpr int kFewSteps = 2;

TEST(NcclParity, GroupedQueryTiedRope) {
  Config config = small_gpt();
  config.train.micro_batch_size = 4;
  const auto batches = batches_for(config, kFewSteps);
  const Trained one = train(config, {}, batches);
  const std::span<const Layout> two(kTwo), four(kFour);
  for (Layout layout : launch->world_size() == 2 ? two : four) {
    layout.micro_batch = 4;
    if (sizes_of(layout).world != launch->world_size()) GTEST_SKIP() << "made for 2 or 4 ranks";
    named(layout.name,
          [&] { check_processes(*launch, one, apply(config, layout), sizes_of(layout), batches, gpu); });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Every setting that fits on so many ranks, experts among them.
TEST(NcclParity, CoveringLayouts) {
  const CoveringDesign design = layout_design(launch->world_size());
  const std::vector<DesignRow> rows = design.rows(1);
  if (launch->is_first()) expect_covered(design, rows, 1);
  References references(kFewSteps);
  for (const DesignRow& row : rows) {
    const DesignCase c = design_case(row);
    const Trained& one = references.of(c);
    named(design.text(row),
          [&] { check_processes(*launch, one, c.config, c.sizes, references.batches(c), gpu); });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Operations that end show that the GPUs are connected; the next of their kind is queued without NCCL's
// host side having to wait for anyone.
void meet(RankContext& ctx, const ProcessGroup& group) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    Tensor x = ctx.full({90000}, dtype, 1);
    group.all_reduce(x).wait();
    expect_values(
        ctx, x, [&](int64_t) { return group.size(); }, "all_reduce");
  }
}

TEST(NcclFault, DISABLED_ARankThatThrows) {
  expect_end(
      [](RankContext& ctx, ProcessGroup& world) {
        meet(ctx, world);
        if (world.rank() == 2) fail("disk full");
        Tensor x = ctx.full({1 << 20}, DType::F32, 1);
        world.all_reduce(x).wait();
        (void)ctx.to_vector<float>(x);
        world.barrier();
      },
      {"disk full"});
}

TEST(NcclFault, DISABLED_ARankThatDoesNotCome) {
  expect_end(
      [](RankContext& ctx, ProcessGroup& world) {
        const ProcessGroup all = world.split(0, 0, "dp");
        meet(ctx, all);
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(12));
          all.barrier();
        }
        Tensor x = ctx.full({3000, 30}, DType::BF16, 1);
        all.all_reduce(x).wait();
        (void)ctx.to_vector<bf16>(x);
        all.barrier();
      },
      {"all_reduce bf16[3000, 30] sum #2 on group dp (ranks 0 1 2) cannot end on the GPU of rank",
       "it did not end within 5.0 s", "rank 1: ", "all_reduce bf16[90000] sum #1 on group dp",
       "nccl_test.cpp:"});
}

TEST(NcclFault, DISABLED_ARankThatDoesNotAttach) {
  if (launch->world_size() != 3) GTEST_SKIP() << "made for 3 ranks";
  std::string told;
  try {
    launch->run([](int rank, ProcessGroup& world) {
      RankContext ctx(gpu, 1, rank);
      if (rank == 1)
        std::this_thread::sleep_for(std::chrono::seconds(8));
      else
        world.attach(ctx);
      world.barrier();
    });
  } catch (const std::exception& error) {
    told = error.what();
  }
  if (launch->is_first()) fmt::print("{}\n", told);
  EXPECT_NE(told.find("missing ranks 1"), std::string::npos) << told;
}

TEST(NcclFault, DISABLED_RanksThatDisagree) {
  expect_end(
      [](RankContext& ctx, ProcessGroup& world) {
        meet(ctx, world);
        Tensor x = ctx.full({90000}, DType::F32, 1), y = ctx.full({270000}, DType::F32, 1);
        (world.rank() == 2 ? world.all_gather(x, y) : world.all_reduce(x)).wait();
        (void)ctx.to_vector<float>(x);
        world.barrier();
      },
      {"comm mismatch on group world (ranks 0 1 2): operation #2", "all_gather fp32[90000]",
       "all_reduce fp32[90000] sum", "nccl_test.cpp:"});
}

// NCCL would end it, and each rank would have another result.
TEST(NcclFault, DISABLED_RanksThatReduceOtherwise) {
  expect_end(
      [](RankContext& ctx, ProcessGroup& world) {
        meet(ctx, world);
        Tensor x = ctx.full({90000}, DType::F32, 1);
        world.all_reduce(x, world.rank() == 1 ? ReduceOp::Max : ReduceOp::Sum).wait();
        (void)ctx.to_vector<float>(x);
        world.barrier();
        std::this_thread::sleep_for(std::chrono::seconds(1));
        world.barrier();
      },
      {"comm mismatch on group world (ranks 0 1 2): operation #2", "all_reduce fp32[90000] max",
       "all_reduce fp32[90000] sum"});
}

TEST(NcclFault, DISABLED_ARankThatDies) {
  expect_end(
      [](RankContext& ctx, ProcessGroup& world) {
        meet(ctx, world);
        if (world.rank() == 1) ::_exit(0);
        Tensor x = ctx.full({1 << 20}, DType::F32, 1);
        world.all_reduce(x).wait();
        (void)ctx.to_vector<float>(x);
        world.barrier();
      },
      {"the connection to process 1 is gone"});
}

int run_all(const LaunchPlace& place) {
  const int gpus = cuda_device_count();
  if (gpus == 0 || !nccl_is_built_in()) {
    fmt::print(stderr, "SKIPPED: NCCL between processes was NOT tested: no usable GPU here\n");
    return kNotTested;
  }
  if (place.processes == 1) {
    fmt::print(stderr, "SKIPPED: nothing to test in one process: start it by tests/nccl/processes.sh\n");
    return kNotTested;
  }
  gpu = Device{DeviceType::Cuda, static_cast<int8_t>(place.process % gpus)};
  if (place.processes > gpus) {
    ::setenv("NCCL_HOSTID", fmt::format("host of process {}", place.process).c_str(), 1);
    ::setenv("NCCL_NET", "Socket", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_MAX_NCHANNELS", "1", 0);
  }
  const char *seconds = std::getenv("MEGATRON_TEST_TIMEOUT"), *limit = std::getenv("MEGATRON_TEST_LIMIT");
  end_with_stacks_after(std::chrono::seconds(limit ? std::atoi(limit) : 200));
  Launch world({.comm = Connection::Nccl,
                .cuda = true,
                .timeout = std::chrono::seconds(seconds ? std::atoi(seconds) : 60),
                .place = place});
  if (world.is_first()) fmt::print("{}\n", world.how());
  launch = &world;
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace megatron::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return megatron::testing::run_all(
        megatron::find_place([](const char* name) { return std::getenv(name); }));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
