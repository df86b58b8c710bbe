// Long runs: what must not grow does not, and what is lived through often leaves nothing behind.
#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "megatron/comm/run_ranks.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"

namespace megatron::testing {
namespace {

// "VmRSS" (in KiB), "Threads", … of this process.
int64_t process_status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1));
  fail("/proc/self/status has no {}", key);
}

TEST(Soak, ThousandsOfStepsTakeNoMoreMemoryThanTheFirst) {
  const Layout layout{.name = "tp2 pp2 dp2 sp", .tp = 2, .pp = 2, .dp = 2, .sp = true};
  const Config config = apply(with_dropout(), layout);
  const auto batches = batches_for(config, 64);
  std::mutex mutex;
  run_ranks(8, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes_of(layout));
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    const int dp = parallel.size(Axis::dp), dp_rank = parallel.rank(Axis::dp);
    MemoryStatistics settled;
    double first = 0, last = 0;
    for (size_t step = 0; step < 4000; ++step) {
      std::span<const int64_t> all = batches[step % batches.size()];
      last = trainer.step(ctx, all.subspan(all.size() / dp * dp_rank, all.size() / dp), 1e-3).loss;
      if (step == 0) first = last;
      if (step == 500) settled = ctx.allocator->statistics();
    }
    const MemoryStatistics now = ctx.allocator->statistics();
    std::lock_guard lock(mutex);
    EXPECT_EQ(now.total.current, settled.total.current) << "rank " << world.rank();
    // How many messages wait at once is up to the threads, so the peak may still move a little.
    EXPECT_LE(now.total.peak, settled.total.peak + settled.total.peak / 20) << "rank " << world.rank();
    EXPECT_LE(now.device_allocations, settled.device_allocations + 4) << "rank " << world.rank();
    EXPECT_LT(last, first - 0.3) << "it learns";
  });
}

// Every run owns what it has: groups, threads and memory go with it.
TEST(Soak, HundredsOfRunsLeaveNothingBehind) {
  const Config config = small_gpt();
  const auto batches = batches_for(config, 1);
  const Layout layouts[] = {{.name = "one"},
                            {.name = "tp2 sp", .tp = 2, .sp = true},
                            {.name = "pp2 dp2", .pp = 2, .dp = 2},
                            {.name = "pp4 dp2", .pp = 4, .dp = 2},
                            {.name = "cp2", .cp = 2}};
  int64_t memory = 0;
  const int64_t threads = process_status("Threads");
  for (int round = 0; round < 400; ++round) {
    for (const Layout& layout : layouts) train(apply(config, layout), sizes_of(layout), batches);
    ASSERT_EQ(process_status("Threads"), threads) << "round " << round;
    if (round == 50) memory = process_status("VmRSS");
  }
  EXPECT_LT(process_status("VmRSS"), memory + 16 * 1024) << "KiB";
}

}  // namespace
}  // namespace megatron::testing
