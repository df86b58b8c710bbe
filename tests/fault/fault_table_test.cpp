#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fault/odd_disks.h"
#include "fault/training.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/folder_lock.h"
#include "megatron/comm/patience.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

// Runs the command in a process of its own, prepared by `prepare`; its messages go to the file.
int train_in_child(const std::vector<std::string>& args, const std::string& messages,
                   const std::function<void()>& prepare) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::FILE* err = std::fopen(messages.c_str(), "w");
    std::FILE* out = std::fopen("/dev/null", "w");
    prepare();
    const int code = run_cli(commands(), args, out, err);
    std::fflush(err);
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Two checkpoints, the newest of which gets damaged: the run says so, goes on from the older one and ends
// with the same bits.
void expect_older_one(const std::function<void(const std::string& newest)>& damage,
                      const std::string& words) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  const auto expected = contents(folder + "/iter_0000010");
  damage(folder + "/iter_0000010");
  const Outcome outcome = train(in_folder(folder));
  expect_said(outcome, 0, words);
  expect_said(outcome, 0, "loaded " + folder + "/iter_0000005, the newest that is sound");
  EXPECT_EQ(contents(folder + "/iter_0000010"), expected);
}

TEST(FaultTable, FlippedBitInData) {
  expect_older_one([](const std::string& path) { flip_last_bit(path + "/rank_00000.safetensors"); },
                   "is damaged: rank_00000.safetensors: optimizer.");
}

TEST(FaultTable, FlippedBitInIndex) {
  expect_older_one([](const std::string& path) { flip_last_bit(path + "/index.json"); },
                   "index.json is damaged: its checksum is");
}

TEST(FaultTable, TruncatedShard) {
  expect_older_one(
      [](const std::string& path) {
        const std::string file = path + "/rank_00000.safetensors";
        fs::resize_file(file, fs::file_size(file) - 100);
      },
      "rank_00000.safetensors: it has");
}

TEST(FaultTable, MissingShard) {
  expect_older_one([](const std::string& path) { fs::remove(path + "/rank_00000.safetensors"); },
                   "No such file");
}

TEST(FaultTable, NothingSoundIsLeft) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  for (const char* name : {"/iter_0000005", "/iter_0000010"})
    flip_last_bit(folder + name + "/rank_00000.safetensors");
  expect_said(train(in_folder(folder)), 1, "none of its 2 checkpoints can be read");
  EXPECT_EQ(list_checkpoints(folder).size(), 2u) << "nothing is deleted";
}

// What was asked for by its number, or not to be checked, is not replaced by another.
TEST(FaultTable, DamageOfWhatWasNamed) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  flip_last_bit(folder + "/iter_0000010/rank_00000.safetensors");
  expect_said(train({"--load", folder, "--ckpt-step", "10"}), 1, "is damaged");
  expect_said(train({"--load", folder, "--no-verify-integrity"}), 0, "loaded " + folder + "/iter_0000010\n");
}

TEST(FaultTable, WrongTracker) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  for (const char* text : {"", "99\n", "release\n", "\xff\xfe", "5\n"}) {
    write_text(folder + "/latest_checkpointed_iteration.txt", text);
    const bool back = std::string(text) == "5\n";
    expect_said(train({"--load", folder}), 0, back ? "iter_0000005" : "loaded " + folder + "/iter_0000010");
  }
}

TEST(FaultTable, TwoRunsOnOneFolder) {
  TempDir dir;
  const std::string folder = dir / "c";
  {
    FolderLock other(folder, FolderLock::owner_of("another run"));
    expect_said(train(in_folder(folder)), 1,
                folder + " is in use by another run (another run, process " + std::to_string(::getpid()));
  }
  EXPECT_EQ(train(in_folder(folder)).code, 0);
}

TEST(FaultTable, ReadOnlyFolder) {
  TempDir dir;
  const std::string folder = dir / "c";
  fs::create_directories(folder);
  fs::permissions(dir.path(), fs::perms::all);
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                              fs::perms::others_exec);
  const std::string messages = dir / "messages";
  const int code = train_in_child(training(in_folder(folder)), messages, [] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(99);  // root may write anywhere
  });
  EXPECT_EQ(code, 1);
  EXPECT_NE(read_text(messages).find("--save: the folder " + folder + " cannot be written"),
            std::string::npos)
      << read_text(messages);
}

// No file may grow: as on a full disk. The run goes on, tells each save that failed, and ends with an error;
// what was saved before is untouched.
TEST(FaultTable, FullDisk) {
  for (const char* how : {"--async-save", "checkpoint.async_save=false"}) {
    SCOPED_TRACE(how);
    TempDir dir;
    const std::string folder = dir / "c", messages = dir / "messages";
    ASSERT_EQ(train(in_folder(folder)).code, 0);
    fs::remove_all(folder + "/iter_0000010");
    const auto expected = contents(folder + "/iter_0000005");
    const int code = train_in_child(training(in_folder(folder, {how, "--save-interval", "2"})), messages, [] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{8192, 8192};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    });
    const std::string said = read_text(messages);
    EXPECT_EQ(code, 3) << said;
    EXPECT_NE(said.find("iteration 6 is not saved, the run goes on: the checkpoint was not saved"),
              std::string::npos)
        << said;
    EXPECT_EQ(contents(folder), expected);
    EXPECT_EQ(list_checkpoints(folder).size(), 1u);
    expect_said(train(in_folder(folder)), 0, "saved " + folder + "/iter_0000010");
  }
}

// A disk on which three checkpoints fit and no fourth: saves fail from then on, are told, and what was saved
// before them stays sound.
TEST(FaultTable, SmallDisk) {
  constexpr int kNotAllowed = 99;
  for (const char* how : {"--async-save", "checkpoint.async_save=false"}) {
    SCOPED_TRACE(how);
    TempDir dir;
    const std::string folder = dir / "c", messages = dir / "messages", found = dir / "found";
    ASSERT_EQ(train({"--save", dir / "size"}).code, 0);
    size_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "size"))
      if (entry.is_regular_file()) bytes += (entry.file_size() + 4095) / 4096 * 4096;
    fs::create_directories(folder);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!mount_small_disk(folder, 3 * bytes + bytes / 2)) ::_exit(kNotAllowed);
      std::FILE* err = std::fopen(messages.c_str(), "w");
      std::FILE* out = std::fopen("/dev/null", "w");
      const int code =
          run_cli(commands(), training({"--save", folder, "--save-interval", "1", how}), out, err);
      std::fflush(err);
      // Whoever looks has to be here, too.
      std::string text;
      for (const CheckpointPlace& place : list_checkpoints(folder))
        text +=
            fmt::format("{}{} ", place.iteration, verify_checkpoint(place.path).empty() ? "" : " damaged");
      write_text(found, text + "tracked " + std::to_string(latest_checkpoint(folder)->iteration));
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "this process may not mount a disk";
    const std::string said = read_text(messages);
    EXPECT_EQ(WEXITSTATUS(status), 3) << said;
    EXPECT_NE(said.find("iteration 4 is not saved, the run goes on"), std::string::npos) << said;
    EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
    EXPECT_EQ(read_text(found), "1 2 3 tracked 3");
  }
}

// A disk on which two checkpoints fit and no third, and that deletes slowly: a save waits for the deletion of
// what is to go, since there is no room beside it, and none fails.
TEST(FaultTable, SmallDiskThatDeletesSlowly) {
  constexpr int kNotAllowed = 99;
  for (const char* how : {"--async-save", "checkpoint.async_save=false"}) {
    SCOPED_TRACE(how);
    TempDir dir;
    const std::string folder = dir / "c", messages = dir / "messages";
    ASSERT_EQ(train({"--save", dir / "size"}).code, 0);
    size_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "size"))
      if (entry.is_regular_file()) bytes += (entry.file_size() + 4095) / 4096 * 4096;
    fs::create_directories(folder);
    const int code = train_in_child(
        training({"--save", folder, "--save-interval", "1", "--most-recent-k", "1", how}), messages, [&] {
          if (!mount_small_disk(folder, 2 * bytes + bytes / 2) ||
              !slow_down({__NR_unlink, __NR_unlinkat, __NR_rmdir}, std::chrono::milliseconds(20)))
            ::_exit(kNotAllowed);
        });
    if (code == kNotAllowed) GTEST_SKIP() << "this process may not mount a disk, or slow itself down";
    const std::string said = read_text(messages);
    EXPECT_EQ(code, 0) << said;
    EXPECT_EQ(said.find("is not saved"), std::string::npos) << said;
    EXPECT_EQ(said.find("older checkpoints stay"), std::string::npos) << said;
    EXPECT_NE(said.find("saved " + folder + "/iter_0000010"), std::string::npos) << said;
  }
}

// The last save does not wait for the deletion of old checkpoints: a run that is told to end has little time.
TEST(FaultTable, LastSaveOnADiskThatDeletesSlowly) {
  constexpr int kNotAllowed = 99;
  TempDir dir;
  const std::string folder = dir / "c", messages = dir / "messages", seen = dir / "seen";
  // A folder goes once the last save is there, or after a minute.
  const auto hold = [&] {
    for (Patience minute(std::chrono::minutes(1)); !fs::exists(folder + "/iter_0000010") && !minute.over();)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (fs::exists(folder + "/iter_0000010") && fs::exists(folder + "/iter_0000004.removed"))
      write_text(seen, "");
    return 0;
  };
  const int code = train_in_child(
      training({"--save", folder, "--save-interval", "4", "--most-recent-k", "1"}), messages, [&] {
        if (!answer_calls({__NR_unlinkat, __NR_rmdir}, hold)) ::_exit(kNotAllowed);
      });
  if (code == kNotAllowed) GTEST_SKIP() << "this kernel does not let a process slow itself down";
  EXPECT_EQ(code, 0) << read_text(messages);
  EXPECT_TRUE(fs::exists(seen)) << "the last save waited for the deletion";
  EXPECT_EQ(contents(folder + "/iter_0000010"), undisturbed());
  EXPECT_EQ(list_checkpoints(folder).size(), 1u);
  EXPECT_FALSE(fs::exists(folder + "/iter_0000004.removed"));
}

// A quota that has room once something is deleted: the last save is tried again.
TEST(FaultTable, LastSaveIsTriedTwice) {
  constexpr int kNotAllowed = 99;
  TempDir dir;
  const std::string folder = dir / "c", messages = dir / "messages";
  const int code = train_in_child(training({"--save", folder}), messages, [] {
    if (!fail_first(__NR_fsync, EDQUOT)) ::_exit(kNotAllowed);
  });
  if (code == kNotAllowed) GTEST_SKIP() << "this kernel does not let a process break its disk";
  EXPECT_EQ(code, 0) << read_text(messages);
  EXPECT_EQ(contents(folder + "/iter_0000010"), undisturbed());
}

// Saves that take longer than the steps between them are waited for, one by one, and nothing is lost.
TEST(FaultTable, SlowDisk) {
  constexpr int kNotAllowed = 99;
  TempDir dir;
  const std::string folder = dir / "c", messages = dir / "messages";
  const int code =
      train_in_child(training({"--save", folder, "--save-interval", "4", "--async-save"}), messages, [] {
        if (!slow_down({__NR_fsync}, std::chrono::milliseconds(50))) ::_exit(kNotAllowed);
      });
  if (code == kNotAllowed) GTEST_SKIP() << "this kernel does not let a process slow itself down";
  const std::string said = read_text(messages);
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("waiting for the save of iteration 4"), std::string::npos) << said;
  EXPECT_EQ(list_checkpoints(folder).size(), 3u);
  EXPECT_EQ(contents(folder + "/iter_0000010"), undisturbed());
}

// The files of the newest checkpoint look older than those of the one before.
TEST(FaultTable, ClockGoesBackwards) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder, {"--most-recent-k", "2"})).code, 0);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(24 * 365);
  for (const auto& entry : fs::recursive_directory_iterator(folder + "/iter_0000010"))
    fs::last_write_time(entry.path(), long_ago);
  fs::last_write_time(folder + "/iter_0000010", long_ago);
  fs::last_write_time(folder + "/latest_checkpointed_iteration.txt", long_ago);
  expect_said(train(in_folder(
                  folder, {"--most-recent-k", "2", "--train-iters", "15", "--override-opt_param-scheduler"})),
              0, "loaded " + folder + "/iter_0000010\n");
  ASSERT_EQ(list_checkpoints(folder).size(), 2u);
  EXPECT_EQ(list_checkpoints(folder)[0].iteration, 10) << "the oldest by its number goes";
}

// Rows that find no room are left out, and the run says so once.
TEST(FaultTable, MetricsOnAFullDisk) {
  TempDir dir;
  const std::string messages = dir / "messages", metrics = dir / "m.jsonl";
  const int code = train_in_child(
      training({"--metrics", metrics, "--train-iters", "40", "--log-interval", "40"}), messages, [] {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{6000, 6000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
      });
  const std::string said = read_text(messages), rows = read_text(metrics);
  const std::string warning = "--metrics " + metrics + ": there is no room for the row of iteration ";
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
  EXPECT_TRUE(rows.ends_with("}\n")) << rows;
}

}  // namespace
}  // namespace megatron::testing
