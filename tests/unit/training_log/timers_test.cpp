#include "megatron/training/log/timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "megatron/comm/run_ranks.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;

double seconds_of(const std::vector<Timers::Reading>& readings, std::string_view name) {
  for (const Timers::Reading& reading : readings)
    if (reading.name == name) return reading.seconds;
  return -1;
}

class Counter final : public Tracer {
 public:
  void op(const char*, Phase, const Cost&) override { ++ops; }
  void begin(const char*) override { ++begun; }
  void end() override { ++ended; }
  int ops = 0, begun = 0, ended = 0;
};

TEST(Timers, RunWhileTheirRangeIsOpen) {
  RankContext ctx;
  Timers timers(ctx, 2);
  {
    const TraceRange step(ctx.tracer, "gradients");
    for (int i = 0; i < 2; ++i) {
      const TraceRange forward(ctx.tracer, "forward");
      const TraceRange other(ctx.tracer, "nobody's");
      std::this_thread::sleep_for(2ms);
    }
    const TraceRange backward(ctx.tracer, "weight gradients");
    std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(5ms);
  timers.finish_step();
  const auto readings = timers.readings();
  EXPECT_GE(seconds_of(readings, "forward-compute"), 0.004);
  EXPECT_GE(seconds_of(readings, "backward-compute"), 0.001);
  EXPECT_GE(seconds_of(readings, "forward-backward"),
            seconds_of(readings, "forward-compute") + seconds_of(readings, "backward-compute"));
  EXPECT_EQ(seconds_of(readings, "optimizer"), 0);
  timers.reset();
  EXPECT_EQ(seconds_of(timers.readings(), "forward-compute"), 0);
}

TEST(Timers, AreThoseOfTheirLevel) {
  RankContext ctx;
  for (const int64_t level : {0, 1, 2}) {
    Timers timers(ctx, level);
    EXPECT_EQ(seconds_of(timers.readings(), "save-checkpoint"), 0);
    EXPECT_EQ(seconds_of(timers.readings(), "optimizer") >= 0, level >= 1);
    EXPECT_EQ(seconds_of(timers.readings(), "forward-send") >= 0, level >= 2);
  }
}

TEST(Timers, PassOnWhatTheyHear) {
  RankContext ctx;
  Counter counter;
  ctx.tracer = &counter;
  {
    Timers timers(ctx, 1);
    const TraceRange range(ctx.tracer, "gradients");
    const TraceRange other(ctx.tracer, "forward");
    ctx.trace("gemm", Phase::Forward, 1, 1);
  }
  EXPECT_EQ(ctx.tracer, &counter);
  EXPECT_EQ(counter.ops, 1);
  EXPECT_EQ(counter.begun, 2);
  EXPECT_EQ(counter.ended, 2);
}

TEST(Timers, ComeFromAllRanks) {
  run_ranks(3, [](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    world.attach(ctx);
    const TimerTable table =
        gather_timers(ctx, world, {{"eval-time", 0, 1.0 + rank}, {"optimizer", 1, 5.0 * rank}}, 10);
    // An evaluation is one; steps were ten.
    const std::vector<std::vector<double>> expected = {{1, 0}, {2, 0.5}, {3, 1}};
    EXPECT_EQ(table.seconds, expected);
    EXPECT_EQ(table.timers[1].name, "optimizer");
  });
}

// A rank on which a timer did not run says nothing of how fast it is.
TEST(Timers, HaveMegatronLMsBlocks) {
  const TimerTable table{.timers = {{"forward-backward", 1}, {"optimizer", 1}, {"forward-send", 2}},
                         .seconds = {{0.1, 0, 0.5}, {0.3, 0.0125, 0.5}}};
  EXPECT_EQ(timers_block(table, 1, TimingLogOption::minmax),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (100.00, 300.00)\n"
            "    optimizer ......................................: (12.50, 12.50)");
  EXPECT_EQ(timers_block(table, 1, TimingLogOption::max),
            "max time across ranks (ms):\n"
            "    forward-backward ...............................: 300.00\n"
            "    optimizer ......................................: 12.50");
  EXPECT_EQ(timers_block(table, 1, TimingLogOption::all),
            "times across ranks (ms):\n"
            "  forward-backward:\n     rank  0: 100.00\n     rank  1: 300.00\n"
            "  optimizer:\n     rank  1: 12.50");
  EXPECT_EQ(timers_block(table, 0, TimingLogOption::minmax), "");
  EXPECT_EQ(timers_block({.timers = {{"optimizer", 1}}, .seconds = {{0}}}, 1, TimingLogOption::minmax), "");
}

}  // namespace
}  // namespace megatron
