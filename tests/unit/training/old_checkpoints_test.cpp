#include "megatron/training/run/old_checkpoints.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <semaphore>
#include <thread>
#include <utility>

#include "fault/odd_disks.h"
#include "support/temp_dir.h"

// How a run deletes checkpoints that do not stay.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

std::string make(const std::string& root, int64_t iteration) {
  const std::string path = root + "/" + iteration_name(iteration);
  fs::create_directories(path);
  testing::write_text(path + "/index.json", std::string(1000, ' '));
  return path;
}

// Keeps the newest checkpoint alone, and collects the lines that a run would log.
class Publisher {
 public:
  explicit Publisher(const std::string& root) : root_(root) {}
  void publish(int64_t iteration) {
    const std::string path = make(root_, iteration);
    old.retain(root_, iteration, path, {.most_recent = 1});
  }

  std::string told;
  OldCheckpoints old{[this](const std::string& line) { told += line + "\n"; }};

 private:
  std::string root_;
};

// Nothing is deleted while a save is under way; the one after it waits for what is still there.
TEST(OldCheckpoints, StandAsideOfASave) {
  TempDir dir;
  Publisher run(dir.path());
  run.publish(1);
  EXPECT_TRUE(run.old.make_way(dir.path()).empty()) << "nothing goes yet";
  run.old.save_ended();
  bool slow = false;
  std::binary_semaphore begun(0);  // the save, before anything can be deleted
  // The thread that deletes takes over what is asked of the kernel here.
  std::thread([&] {
    slow = testing::answer_calls({__NR_unlink, __NR_unlinkat, __NR_rmdir}, [&, waits = true]() mutable {
      if (std::exchange(waits, false)) begun.acquire();
      return 0;
    });
    if (!slow) return;
    const std::string first = dir / iteration_name(1) + ".removed",
                      second = dir / iteration_name(2) + ".removed";
    run.publish(2);
    EXPECT_EQ(run.old.make_way(dir.path()), std::vector<std::string>{first});
    begun.release();
    run.publish(3);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(fs::exists(first)) << "deleted beside a save";
    EXPECT_TRUE(fs::exists(second)) << "deleted beside a save";
    EXPECT_TRUE(run.old.make_way(dir.path()).empty());
    EXPECT_FALSE(fs::exists(first));
    EXPECT_FALSE(fs::exists(second));
    run.old.finish();
  }).join();
  if (!slow) GTEST_SKIP() << "this kernel does not let a process slow itself down";
  EXPECT_EQ(run.told, "");
}

TEST(OldCheckpoints, TellsWhatStays) {
  TempDir dir;
  make(dir.path(), 1);
  Publisher run(dir.path());
  bool broken = false;
  std::thread([&] {
    broken = testing::keep_folders();
    if (!broken) return;
    run.publish(2);
    run.old.finish();
  }).join();
  if (!broken) GTEST_SKIP() << "this kernel does not let a process break its disk";
  EXPECT_EQ(run.told, "older checkpoints stay: cannot remove " + dir / "iter_0000001.removed" +
                          ": Directory not empty\n");
}

// A machine that has no thread left for it: the save is done all the same, and the run goes on.
TEST(OldCheckpoints, StayWhereNoThreadCanBegin) {
  TempDir dir;
  make(dir.path(), 1);
  Publisher run(dir.path());
  bool broken = false;
  std::string error = "no error";
  std::thread([&] {
    broken = testing::limit_threads(0);
    if (!broken) return;
    try {
      run.publish(2);
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }).join();
  if (!broken) GTEST_SKIP() << "this kernel does not let a process limit its threads";
  EXPECT_EQ(error, "no error");
  EXPECT_EQ(run.told, "older checkpoints stay: Resource temporarily unavailable\n");
  EXPECT_FALSE(fs::exists(dir / "iter_0000001")) << "a checkpoint no more";
}

}  // namespace
}  // namespace megatron
