#include "megatron/training/run/rank_launch.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/temp_dir.h"

namespace megatron {
namespace {

// Two processes, which are threads here, with settings of their own; what each is told.
std::vector<std::string> launch_with(const Config& first, const Config& second) {
  testing::TempDir folder;
  std::vector<std::string> told(2);
  std::vector<std::thread> processes;
  for (int process = 0; process < 2; ++process)
    processes.emplace_back([&, process] {
      const Config& config = process == 0 ? first : second;
      try {
        run_on_ranks(config, {.process = process, .processes = 2, .store_folder = folder.path() + "/store"},
                     Log(), [&](RankContext&, const ProcessGroup& world) { world.barrier(); });
      } catch (const std::exception& error) {
        told[static_cast<size_t>(process)] = error.what();
      }
    });
  for (std::thread& thread : processes) thread.join();
  return told;
}

TEST(RankLaunch, ProcessesWithOtherSettingsAreRefused) {
  Config config;
  config.run.device = DeviceChoice::cpu;
  Config elsewhere = config, other = config;
  elsewhere.checkpoint.save = "/somewhere/else";
  other.optimizer.lr = 7e-4;
  EXPECT_EQ(launch_with(config, elsewhere), (std::vector<std::string>{"", ""}));
  for (const std::string& text : launch_with(config, other)) {
    EXPECT_NE(text.find("optimizer.lr is "), std::string::npos) << text;
    EXPECT_NE(text.find(" at rank 0 and 7e-04 at rank 1"), std::string::npos) << text;
  }
}

// Files may be elsewhere on another machine, but are as many, and drawn from as often.
TEST(RankLaunch, ProcessesWithOtherDataAreRefused) {
  Config config;
  config.run.device = DeviceChoice::cpu;
  config.dataset.data_path = {"0.3", "/here/books", "0.7", "/here/news"};
  config.dataset.path_to_cache = "/here/cache";
  Config elsewhere = config, weights = config, fewer = config, seed = config;
  elsewhere.dataset.data_path = {"0.3", "/there/books", "0.7", "/there/news"};
  elsewhere.dataset.path_to_cache.clear();
  weights.dataset.data_path[0] = "0.4";
  fewer.dataset.data_path.resize(2);
  seed.dataset.random_seed = 5;
  EXPECT_EQ(launch_with(config, elsewhere), (std::vector<std::string>{"", ""}));
  for (const Config& other : {weights, fewer, seed})
    for (const std::string& text : launch_with(config, other))
      EXPECT_NE(text.find("dataset."), std::string::npos) << text;
}

// A fault ends a generation. The next one computes with the same libraries' state and in the same memory.
TEST(RankLaunch, DevicesOutliveGenerations) {
  Config config;
  config.run.device = DeviceChoice::cpu;
  config.run.ranks = 2;
  const LaunchPlace place;
  Launch launch(launch_options(config, place));
  std::vector<KeptDevice> kept(2);
  std::chrono::steady_clock::time_point failed;
  const DeviceRuntime* runtimes[2] = {};
  uint64_t allocations[2] = {};
  const auto generation = [&](bool fails) {
    run_generation(
        launch, config, place, Log(),
        [&](RankContext& ctx, const ProcessGroup& world) {
          const auto rank = static_cast<size_t>(world.rank());
          const Tensor large = ctx.zeros({1 << 16}, DType::F32);
          EXPECT_EQ(&ctx.stream.runtime(), ctx.runtime.get());
          const uint64_t now = ctx.allocator->statistics().device_allocations;
          if (runtimes[rank]) {
            EXPECT_EQ(ctx.runtime.get(), runtimes[rank]);
            EXPECT_EQ(now, allocations[rank]) << "memory was taken again";
          }
          runtimes[rank] = ctx.runtime.get();
          allocations[rank] = now;
          world.barrier();
          if (fails) throw Error("a planted fault");
        },
        failed, kept);
  };
  EXPECT_THROW(generation(true), Error);
  launch.rendezvous({});
  generation(false);
}

}  // namespace
}  // namespace megatron
