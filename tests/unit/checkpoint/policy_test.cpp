#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "fault/odd_disks.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/background_removal.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/folder_lock.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/run_ranks.h"
#include "support/error_of.h"
#include "support/temp_dir.h"
#include "support/test_device.h"

// Who may save into a folder, what stays there, and what a saver keeps from one save to the next.
namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_text;

SaveRequest request_of(RankContext& ctx, const std::string& root, int64_t iteration, int64_t rows = 8) {
  SaveRequest request;
  request.root = root;
  request.state.iteration = iteration;
  request.tensors = {
      {"w", ShardSpec::whole({rows, 4}), ctx.full({rows, 4}, DType::F32, static_cast<double>(iteration))}};
  return request;
}

void save(const std::string& root, int64_t iteration) {
  RankContext ctx;
  save_checkpoint(ctx, ProcessGroup::self("world"), request_of(ctx, root, iteration));
}

std::vector<int64_t> iterations(const std::vector<CheckpointPlace>& places) {
  std::vector<int64_t> list;
  for (const CheckpointPlace& place : places) list.push_back(place.iteration);
  return list;
}

TEST(FolderLock, OneOwnerAtATime) {
  TempDir dir;
  {
    FolderLock first(dir / "new/c", FolderLock::owner_of("a run"));
    EXPECT_TRUE(first.held());
    const std::string message =
        error_of([&] { FolderLock second(dir / "new/c", FolderLock::owner_of("another")); });
    EXPECT_EQ(message.find(dir / "new/c" + " is in use by another run (a run, process " +
                           std::to_string(::getpid()) + " on "),
              0u)
        << message;
    FolderLock moved = std::move(first);
    EXPECT_NE(error_of([&] { FolderLock second(dir / "new/c", FolderLock::owner_of("another")); }),
              "no error");
  }
  FolderLock next(dir / "new/c", FolderLock::owner_of("the next"));
  EXPECT_EQ(read_text(dir / "new/c/.lock").find("the next, process "), 0u);
}

// A process may stop between the lock and its name.
TEST(FolderLock, AHolderMayBeUnnamed) {
  TempDir dir;
  const auto holder = [&]() -> std::string {
    try {
      FolderLock lock(dir.path(), "me");
    } catch (const FolderInUse& error) {
      return error.holder();
    }
    return "nobody";
  };
  for (const char* before : {"", "a run of yesterday\n"}) {
    if (*before) write_text(dir / ".lock", before);
    const std::string unnamed = FolderLock::unnamed_holder(dir.path());
    const int file = ::open((dir / ".lock").c_str(), O_RDWR | O_CREAT, 0666);
    ASSERT_EQ(::flock(file, LOCK_EX | LOCK_NB), 0);
    EXPECT_EQ(holder(), unnamed);
    EXPECT_EQ(FolderLock::unnamed_holder(dir.path()), "");  // it may be another run's
    ::close(file);
    EXPECT_EQ(holder(), "nobody");
  }
}

// The lock of a process that was killed is nobody's.
TEST(FolderLock, GoesWithItsProcess) {
  TempDir dir;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FolderLock lock(dir.path(), FolderLock::owner_of("a child"));
    if (::write(pipe[1], "x", 1) != 1) ::_exit(1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
  EXPECT_NE(
      error_of([&] { FolderLock lock(dir.path(), FolderLock::owner_of("me")); }).find("(a child, process "),
      std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(error_of([&] { FolderLock lock(dir.path(), FolderLock::owner_of("me")); }), "no error");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Retain, NeverTheNewestNorWhatCameLater) {
  TempDir dir;
  for (int64_t iteration : {1, 2, 3, 4, 5, 6}) save(dir.path(), iteration);
  EXPECT_TRUE(retain_checkpoints(dir.path(), 6, {}).empty());
  EXPECT_EQ(retain_checkpoints(dir.path(), 5, {.most_recent = 2, .interval = 2}),
            (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(iterations(list_checkpoints(dir.path())), (std::vector<int64_t>{2, 4, 5, 6}));
  EXPECT_EQ(retain_checkpoints(dir.path(), 6, {.interval = 4}), (std::vector<int64_t>{5}))
      << "the interval alone asks for the previous one";
  fs::rename(dir / "iter_0000004", dir / "elsewhere");
  fs::create_symlink(dir / "elsewhere", dir / "iter_0000004");
  EXPECT_EQ(retain_checkpoints(dir.path(), 6, {.most_recent = 1}), (std::vector<int64_t>{2}));
  EXPECT_TRUE(fs::exists(dir / "elsewhere/index.json"));
}

// What goes is no checkpoint any more before it is deleted.
TEST(Retain, SetsAsideForAnotherThread) {
  TempDir dir;
  for (int64_t iteration : {1, 2, 3}) save(dir.path(), iteration);
  std::vector<std::string> aside;
  EXPECT_EQ(retain_checkpoints(dir.path(), 3, {.most_recent = 1}, &aside), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(aside, (std::vector<std::string>{dir / "iter_0000001.removed", dir / "iter_0000002.removed"}));
  EXPECT_EQ(iterations(list_checkpoints(dir.path())), (std::vector<int64_t>{3}));
  EXPECT_TRUE(fs::exists(aside[1] + "/index.json"));
  {
    BackgroundRemoval removal;
    removal.add(aside);
  }
  EXPECT_FALSE(fs::exists(aside[0]));
  EXPECT_FALSE(fs::exists(aside[1]));
}

// Large files go part by part, between which a save may have the disk to itself.
TEST(BackgroundRemoval, StandsStillWhileItIsPaused) {
  TempDir dir;
  const auto make = [&](const std::string& name) {
    fs::create_directories(dir / name);
    write_text(dir / name + "/file", "");
    fs::resize_file(dir / name + "/file", uintmax_t{300} << 20);  // a hole
    return dir / name;
  };
  BackgroundRemoval removal;
  removal.pause();
  const std::string first = make("a"), second = make("b");
  fs::create_hard_link(first + "/file", dir / "kept");
  removal.add({first});
  removal.add({second});
  EXPECT_EQ(removal.pending(), (std::vector<std::string>{first, second}));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(fs::file_size(first + "/file"), uintmax_t{300} << 20);
  EXPECT_TRUE(fs::exists(second));
  removal.resume();
  removal.finish();
  EXPECT_TRUE(removal.pending().empty());
  EXPECT_FALSE(fs::exists(first));
  EXPECT_FALSE(fs::exists(second));
  EXPECT_EQ(fs::file_size(dir / "kept"), uintmax_t{300} << 20) << "what has another name keeps its bytes";
  // Whoever waits for room does not wait for the pause to end.
  removal.pause();
  removal.add({make("c")});
  removal.finish();
  EXPECT_FALSE(fs::exists(dir / "c"));
  EXPECT_EQ(error_of([&] { removal.rethrow(); }), "no error");
}

// Whether the system tells who uses the files of a folder, as it does for disks of this machine.
bool knows_users(const std::string& folder) {
  struct statfs facts {};
  if (::statfs(folder.c_str(), &facts) != 0) return false;
  const std::set<long> kinds = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
                                F2FS_SUPER_MAGIC, TMPFS_MAGIC,     OVERLAYFS_SUPER_MAGIC};
  const std::string path = folder + "/lease-probe";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const bool granted = fd >= 0 && ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  return granted && kinds.count(static_cast<long>(facts.f_type)) > 0;
}

// A save that begins in the middle of a file waits for one part at most.
TEST(BackgroundRemoval, StandsStillWithinAFile) {
  TempDir dir;
  if (!knows_users(dir.path())) GTEST_SKIP() << "files are deleted whole here";
  constexpr uintmax_t kPart = uintmax_t{64} << 20, kBytes = kPart << 16;  // a hole
  bool seen = false;
  for (int i = 0; i < 50 && !seen; ++i) {
    fs::create_directories(dir / "a");
    write_text(dir / "a/file", "");
    std::error_code error;
    fs::resize_file(dir / "a/file", kBytes, error);
    if (error) GTEST_SKIP() << "no file may be this large here";
    BackgroundRemoval removal;
    removal.add({dir / "a"});
    uintmax_t size = kBytes;
    while (!error && size == kBytes) size = fs::file_size(dir / "a/file", error);
    removal.pause();
    size = fs::file_size(dir / "a/file", error);
    seen = !error && size > 4 * kPart;
    if (!seen) continue;  // this thread came too late
    EXPECT_EQ(size % kPart, 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_GE(fs::file_size(dir / "a/file"), size - kPart);
    removal.resume();
    removal.finish();
    EXPECT_FALSE(fs::exists(dir / "a"));
  }
  EXPECT_TRUE(seen);
}

// On a mount from elsewhere nobody knows who reads, and a file that gets shorter may be stored once more.
TEST(BackgroundRemoval, CutsOnDisksOfThisMachineAlone) {
  constexpr int kNotAllowed = 99;
  // `kind`: ramfs stands for those, as a file system that grants leases and is none of the disks' either.
  for (const char* kind : {"tmpfs", "ramfs"}) {
    SCOPED_TRACE(kind);
    TempDir dir;
    const pid_t child = ::fork();
    if (child == 0) {
      if (!testing::mount_disk(dir.path(), kind, "")) ::_exit(kNotAllowed);
      if (std::string(kind) == "tmpfs" && !knows_users(dir.path())) ::_exit(kNotAllowed);
      fs::create_directories(dir / "a");
      write_text(dir / "a/file", "");
      fs::resize_file(dir / "a/file", uintmax_t{300} << 20);
      if (!testing::forbid_call(__NR_truncate)) ::_exit(kNotAllowed);
      BackgroundRemoval removal;
      removal.add({dir / "a"});
      removal.finish();
      ::_exit(fs::exists(dir / "a") ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed)
      GTEST_SKIP() << "this process may not mount a disk, be watched, or hear who uses a file";
    const bool cut = WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
    EXPECT_TRUE(cut || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
    EXPECT_EQ(cut, std::string(kind) == "tmpfs");
  }
}

// A program that has opened or mapped a file of an old checkpoint reads on to its end.
TEST(BackgroundRemoval, CutsNothingThatIsRead) {
  TempDir dir;
  fs::create_directories(dir / "a");
  write_text(dir / "a/file", "begin");
  fs::resize_file(dir / "a/file", uintmax_t{300} << 20);
  const int fd = ::open((dir / "a/file").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  BackgroundRemoval removal;
  removal.add({dir / "a"});
  removal.finish();
  EXPECT_FALSE(fs::exists(dir / "a"));
  struct stat facts {};
  EXPECT_EQ(::fstat(fd, &facts), 0);
  EXPECT_EQ(facts.st_size, off_t{300} << 20);
  ::close(fd);
}

// A process that was left out of a run may still be deleting what the next save of the others clears away.
TEST(BackgroundRemoval, BesideAnotherProcess) {
  TempDir dir;
  for (int round = 0; round < 20; ++round) {
    const std::string folder = dir / "a" + std::to_string(round);
    for (int i = 0; i < 10; ++i) {
      fs::create_directories(folder + "/" + std::to_string(i));
      for (int j = 0; j < 10; ++j) write_text(fmt::format("{}/{}/{}", folder, i, j), "1");
    }
    BackgroundRemoval one, another;
    one.add({folder});
    another.add({folder});
    one.finish();
    another.finish();
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_EQ(error_of([&] { one.rethrow(); }), "no error");
    EXPECT_EQ(error_of([&] { another.rethrow(); }), "no error");
  }
}

TEST(BackgroundRemoval, TellsWhatItCannotDelete) {
  TempDir dir;
  fs::create_directory(dir / "b");
  const std::string absurd = dir / std::string(300, 'a');
  BackgroundRemoval removal;
  removal.add({absurd, dir / "b"});
  removal.finish();
  EXPECT_FALSE(fs::exists(dir / "b"));
  EXPECT_EQ(error_of([&] { removal.rethrow(); }), "cannot remove " + absurd + ": File name too long");
  EXPECT_EQ(error_of([&] { removal.rethrow(); }), "no error") << "once";
}

// The next save neither waits for what is being deleted nor deletes it, but clears what a killed run left;
// and an iteration that is saved and goes again does so under another name.
TEST(Retain, ASaveLeavesAloneWhatIsBeingDeleted) {
  TempDir dir;
  for (int64_t iteration : {1, 2}) save(dir.path(), iteration);
  fs::create_directory(dir / "iter_0000007.removed");
  std::vector<std::string> aside;
  retain_checkpoints(dir.path(), 2, {.most_recent = 1}, &aside);
  ASSERT_EQ(aside, (std::vector<std::string>{dir / "iter_0000001.removed"}));
  RankContext ctx;
  SaveRequest request = request_of(ctx, dir.path(), 1);
  request.being_removed = aside;
  save_checkpoint(ctx, ProcessGroup::self("world"), request);
  EXPECT_TRUE(fs::exists(aside[0] + "/index.json"));
  EXPECT_FALSE(fs::exists(dir / "iter_0000007.removed"));
  retain_checkpoints(dir.path(), 2, {.most_recent = 1}, &aside);
  EXPECT_EQ(aside, (std::vector<std::string>{dir / "iter_0000001.removed", dir / "iter_0000001.2.removed"}));
  EXPECT_EQ(iterations(list_checkpoints(dir.path())), (std::vector<int64_t>{2}));
  save(dir.path(), 3);
  for (const std::string& path : aside) EXPECT_FALSE(fs::exists(path)) << "another process clears the rest";
}

// A deletion that is killed leaves no name of a checkpoint, and the next save clears the rest.
TEST(Retain, HalfADeletion) {
  TempDir dir;
  save(dir.path(), 1);
  save(dir.path(), 2);
  fs::rename(dir / "iter_0000001", dir / "iter_0000001.removed");
  EXPECT_EQ(iterations(list_checkpoints(dir.path())), (std::vector<int64_t>{2}));
  save(dir.path(), 3);
  EXPECT_FALSE(fs::exists(dir / "iter_0000001.removed"));
}

// A folder of which the disk lets go of the files alone, since another machine reads one of them, stops no
// save and none that takes its name.
TEST(SaveCheckpoint, PassesOverWhatCannotBeDeleted) {
  TempDir dir;
  for (int64_t iteration : {1, 2, 3}) save(dir.path(), iteration);
  write_text(dir / "latest_checkpointed_iteration.txt", "1\n");
  fs::rename(dir / "iter_0000003", dir / "iter_0000003.removed");
  bool broken = false;
  std::string again, partial;
  std::thread([&] {  // what it asks of the kernel holds for it alone
    broken = testing::keep_folders();
    if (!broken) return;
    again = error_of([&] { save(dir.path(), 2); });
    fs::create_directory(dir / "iter_0000004.partial");
    partial = error_of([&] { save(dir.path(), 4); });
  })
      .join();
  if (!broken) GTEST_SKIP() << "this kernel does not let a process break its disk";
  EXPECT_EQ(again, "no error");
  EXPECT_TRUE(fs::exists(dir / "iter_0000003.removed"));
  EXPECT_TRUE(fs::exists(dir / "iter_0000002.partial")) << "the old one of the two";
  EXPECT_EQ(latest_checkpoint(dir.path())->iteration, 2) << "the tracker names what is published";
  EXPECT_TRUE(verify_checkpoint(dir / "iter_0000002").empty());
  EXPECT_NE(partial.find("cannot remove " + dir / "iter_0000004.partial: Directory not empty"),
            std::string::npos)
      << "new files may lie beside no old ones: " << partial;
  save(dir.path(), 5);
  EXPECT_FALSE(fs::exists(dir / "iter_0000003.removed"));
  EXPECT_FALSE(fs::exists(dir / "iter_0000002.partial"));
}

TEST(ResumePlaces, TheLatestThenOlderOnes) {
  TempDir dir;
  EXPECT_TRUE(resume_places(dir / "absent").empty());
  for (int64_t iteration : {1, 2, 3}) save(dir.path(), iteration);
  EXPECT_EQ(iterations(resume_places(dir.path())), (std::vector<int64_t>{3, 2, 1}));
  write_text(dir / "latest_checkpointed_iteration.txt", "2\n");
  EXPECT_EQ(iterations(resume_places(dir.path())), (std::vector<int64_t>{2, 1}));
}

TEST(SaveCheckpoint, ReplacesNothingOfAnotherProgram) {
  TempDir dir;
  fs::create_directory(dir / "iter_0000003");
  write_text(dir / "iter_0000003/.metadata", "theirs");
  EXPECT_NE(error_of([&] { save(dir.path(), 3); }).find("was not saved by this program"), std::string::npos);
  EXPECT_EQ(read_text(dir / "iter_0000003/.metadata"), "theirs");
  EXPECT_FALSE(fs::exists(dir / "iter_0000003.partial"));
}

// The folder goes while files are being written: an error, and the next save makes it again.
TEST(SaveCheckpoint, AFolderThatVanishes) {
  TempDir dir;
  const std::string root = dir / "c";
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    AsyncSaver saver;
    SaveRequest request = request_of(ctx, root, 1);
    if (rank == 0)
      request.on_step = [&](std::string_view step) {
        if (step == "begin") fs::remove_all(root);
      };
    saver.start(ctx, world, request);
    EXPECT_NE(error_of([&] { saver.finish(world); }).find("the checkpoint was not saved"), std::string::npos);
    saver.start(ctx, world, request_of(ctx, root, 2));
    EXPECT_EQ(saver.finish(world), root + "/iter_0000002");
  });
  EXPECT_TRUE(verify_checkpoint(root + "/iter_0000002").empty());
}

// A plan is made again where tensors have changed, and only then told to the others.
TEST(SaveCheckpoint, KeepsItsPlan) {
  TempDir dir;
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    SavePlanCache plans;
    save_checkpoint(ctx, world, request_of(ctx, dir.path(), 1), &plans);
    const StoredTensor* kept = plans.plan.data();
    const std::string own = plans.own;
    save_checkpoint(ctx, world, request_of(ctx, dir.path(), 2), &plans);
    EXPECT_EQ(plans.plan.data(), kept);
    save_checkpoint(ctx, world, request_of(ctx, dir.path(), 3, 16), &plans);
    EXPECT_NE(plans.own, own);
    for (const StoredTensor& tensor : plans.plan) EXPECT_EQ(tensor.shape, Shape({16, 4}));
  });
  EXPECT_EQ(read_index(dir / "iter_0000003").tensors[0].shape, Shape({16, 4}));
  for (const char* name : {"iter_0000001", "iter_0000002", "iter_0000003"})
    EXPECT_TRUE(verify_checkpoint(dir / name).empty());
}

// On the GPU with MEGATRON_TEST_DEVICE=cuda.
TEST(Snapshot, KeepsItsMemory) {
  RankContext ctx(testing::test_device());
  Snapshot snapshot;
  const Tensor values = ctx.full({100, 3}, DType::F32, 7);
  const std::vector<OwnChunk> pieces = {{"part", values.slice(1, 0, 2)}, {"whole", values}};
  const void* memory = nullptr;
  for (const float value : {7.0F, 8.0F, 9.0F}) {
    ctx.kernels->fill(ctx.kernel_context(), {values, value});
    snapshot.take(ctx, pieces);
    snapshot.hold_back(ctx);
    ctx.kernels->fill(ctx.kernel_context(), {values, -1});  // the next update
    const std::span<const OwnChunk> copies = snapshot.copies();
    EXPECT_EQ(copies[0].tensor.shape(), Shape({100, 2}));
    for (const OwnChunk& copy : copies)
      for (int64_t i = 0; i < copy.tensor.numel(); ++i)
        ASSERT_EQ(copy.tensor.data<float>()[i], value) << copy.key;
    EXPECT_TRUE(!memory || memory == copies[1].tensor.raw());
    memory = copies[1].tensor.raw();
    snapshot.release();
  }
}

TEST(Agree, OneRanksFailureIsEveryRanks) {
  run_ranks(3, [&](int rank, ProcessGroup& world) {
    const auto failing = [&](const char* title, bool refused) {
      return [&world, rank, title, refused] {
        agree(world, title, [&]() -> std::string {
          if (rank == 1 && refused) throw ConfigError("no");
          if (rank == 1) throw Error("broken");
          return "fine";
        });
      };
    };
    EXPECT_EQ(error_of(failing("not done", false)), "not done:\n  rank 1: broken");
    EXPECT_EQ(error_of(failing("", true)), "no");
    EXPECT_THROW(failing("", true)(), ConfigError);
    EXPECT_EQ(agree(world, "", [&] { return std::to_string(rank); }),
              (std::vector<std::string>{"0", "1", "2"}));
  });
}

}  // namespace
}  // namespace megatron
