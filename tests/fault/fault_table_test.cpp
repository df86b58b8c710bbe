#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fault/training.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/folder_lock.h"

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
    FolderLock other(folder, "another run");
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

}  // namespace
}  // namespace megatron::testing
