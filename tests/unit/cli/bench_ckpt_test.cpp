#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "megatron/base/interruption.h"
#include "megatron/base/json.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

using testing::TempDir;

TEST(BenchCkpt, OnACpu) {
  TempDir dir;
  const Outcome outcome =
      run_command({"bench", "ckpt", "gpt-10m", "--device", "cpu", "--precision", "bf16", "--batch", "1",
                   "--saves", "1", "--steps", "2", "--warmup", "1", "--dir", dir / "c", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  // The next save comes when the last is published, so that what is exposed is not the wait for it.
  EXPECT_EQ(outcome.err.find("waiting for the save"), std::string::npos) << outcome.err;
  for (const char* told :
       {"asynchronous save 1 of 2", "asynchronous save 2 of 2", "synchronous save:", "load:"})
    EXPECT_NE(outcome.err.find(told), std::string::npos) << told << "\n" << outcome.err;
  EXPECT_NEAR(json.at("async_exposed_ms").as_double(),
              json.at("async_snapshot_ms").as_double() + json.at("async_waiting_ms").as_double(), 1e-3);
  // bf16 weights, fp32 masters and moments in the file; of masters only the low halves in memory.
  EXPECT_NEAR(json.at("copied_bytes").as_double() / json.at("bytes").as_double(), 12.0 / 14, 0.01);
  EXPECT_LT(json.at("load_peak_of_model").as_double(), 1.08) << "fp32 masters of one range at a time";
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
}

// Both ranks write what they hold and what the other one does, 14 bytes a parameter of a checkpoint.
TEST(BenchCkpt, OfLocalDisks) {
  TempDir dir;
  const auto bytes = [&](const char* ranks) {
    const Outcome outcome =
        run_command({"bench", "ckpt", "gpt-10m", "--device", "cpu", "--precision", "bf16", "--batch", "2",
                     "--data-parallel-size", ranks, "--saves", "1", "--dir", dir / "c", "--local", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(dir / "c"));
    const Json json = Json::parse(outcome.out);
    EXPECT_GT(json.at("local_save_seconds").as_double(), 0);
    EXPECT_GT(json.at("local_load_seconds").as_double(), 0);
    EXPECT_EQ(std::to_string(json.at("copies").as_int()), ranks);
    return json.at("local_bytes").as_double();
  };
  EXPECT_NEAR(bytes("2") / bytes("1"), 2, 0.02);
}

// What a run saves that is interrupted was never asked for, and is no measurement.
TEST(BenchCkpt, AnInterruptedRunMeasuresNothing) {
  TempDir dir;
  const Interruption until_then;  // a signal that comes late or early does not end the test
  std::atomic<bool> over = false;
  std::thread interrupts([&] {
    while (!over && !std::filesystem::exists(dir / "c/.lock"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::raise(SIGINT);
  });
  const Outcome outcome = run_command({"bench", "ckpt", "gpt-10m", "--device", "cpu", "--batch", "1",
                                       "--steps", "1000", "--saves", "1", "--dir", dir / "c"});
  over = true;
  interrupts.join();
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(outcome.err.find("synchronous save"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(dir / "c"));
}

TEST(BenchCkpt, RefusesWhatIsAbsurd) {
  const auto refused = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"bench", "ckpt", "gpt-10m", "--device", "cpu"});
    return run_command(args).err;
  };
  EXPECT_EQ(refused({"--saves", "0"}), "megatron: bench ckpt: --saves must be at least 1, not 0\n");
  EXPECT_EQ(refused({"--saves", "100000"}),
            "megatron: bench ckpt: --saves must be at most 1000, not 100000\n");
  EXPECT_EQ(refused({"--steps", "1000000000"}),
            "megatron: bench ckpt: --steps must be at most 1000, not 1000000000\n");
  TempDir dir;
  testing::write_text(dir / "file", "");
  EXPECT_EQ(refused({"--dir", dir.path()}),
            "megatron: bench ckpt: --dir " + dir.path() + ": it is not empty; name a new folder\n");
}

}  // namespace
}  // namespace megatron
