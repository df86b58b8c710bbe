// Checkpoints on local disks: a run goes on from them whatever machines are lost, as long as what is left
// holds everything.
#include "fault/processes.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/training/run/local_checkpoints.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

using Holders = std::vector<std::vector<int>>;

TEST(ReplicaHolders, AreInOtherDomains) {
  EXPECT_EQ(replica_holders(4, 2, 1), (Holders{{1}, {0}, {3}, {2}}));
  EXPECT_EQ(replica_holders(8, 2, 4), (Holders{{4}, {5}, {6}, {7}, {0}, {1}, {2}, {3}}));
  EXPECT_EQ(replica_holders(4, 1, 1), Holders(4));
  for (const int ranks : {2, 3, 5, 8, 12, 16, 33})
    for (const int factor : {2, 3, 4})
      for (const int jump : {1, 2, 4, 8}) {
        SCOPED_TRACE(fmt::format("{} ranks, factor {}, jump {}", ranks, factor, jump));
        const int domains = (ranks + jump - 1) / jump;
        const Holders holders = replica_holders(ranks, factor, jump);
        for (int rank = 0; rank < ranks; ++rank) {
          std::set<int> used = {rank / jump};
          for (const int holder : holders[static_cast<size_t>(rank)])
            EXPECT_TRUE(used.insert(holder / jump).second) << "rank " << rank;
          EXPECT_EQ(static_cast<int>(used.size()), std::min(factor, domains)) << "rank " << rank;
        }
      }
}

// Every process is a machine with a disk of its own.
struct Cluster {
  explicit Cluster(std::vector<std::string> layout) : layout_(std::move(layout)) {}

  // What the first process says, after all have ended well.
  std::string run(int processes, const std::vector<std::string>& further = {}) {
    std::vector<std::string> args = training(in_folder(folder, layout_));
    args.insert(args.end(), {"--non-persistent-ckpt-type", "local", "--non-persistent-save-interval", "3",
                             "--non-persistent-local-ckpt-dir", dir / "disk{process}",
                             "--distributed-timeout-minutes", "0.5"});
    args.insert(args.end(), further.begin(), further.end());
    const std::vector<pid_t> children = start_processes(processes, args, dir / "messages");
    const auto states = ended_within(children, 60'000);
    const std::string said = read_text(dir / "messages0");
    EXPECT_EQ(states, std::vector<int>(children.size(), 0)) << said;
    return said;
  }
  void lose(int machine) { fs::remove_all(disk(machine)); }
  std::string disk(int machine) const { return dir / "disk" + std::to_string(machine); }
  // A file of what a rank holds, on a machine.
  std::string share(int machine, int rank) const {
    for (const auto& entry : fs::recursive_directory_iterator(disk(machine)))
      if (entry.path().filename() == fmt::format("rank_{:05}.safetensors", rank))
        return entry.path().string();
    return "";
  }

  TempDir dir;
  std::string folder = dir / "c";

 private:
  std::vector<std::string> layout_;
};

constexpr const char* kLoaded = "loaded the local checkpoint of iteration 9";

TEST(LocalCheckpoints, OutliveLostMachines) {
  // Optimizer states are on one rank each, so that nothing but the copies replaces a machine.
  Cluster cluster({"--async-save", "--use-distributed-optimizer", "--replication"});
  EXPECT_NE(cluster.run(4, {"--replication-jump", "1"}).find("saved iteration 9 on local disks"),
            std::string::npos);
  const auto expected = contents(cluster.folder + "/iter_0000010");
  const auto go_on = [&](int processes, const std::string& words) {
    forget_the_end(cluster.folder);
    const std::string said = cluster.run(processes, {"--replication-jump", "1"});
    EXPECT_NE(said.find(words), std::string::npos) << said;
    return contents(cluster.folder + "/iter_0000010");
  };
  // Every second machine is another one now, with an empty disk.
  cluster.lose(1);
  cluster.lose(2);
  EXPECT_EQ(go_on(4, kLoaded), expected);
  // A copy replaces what a disk has spoiled, which is told.
  forget_the_end(cluster.folder);
  ASSERT_NE(cluster.share(3, 3), "");
  flip_last_bit(cluster.share(3, 3));
  flip_last_bit(cluster.share(3, 2));
  const std::string said = cluster.run(4, {"--replication-jump", "1"});
  EXPECT_NE(said.find("is damaged: rank_00003.safetensors"), std::string::npos) << said;
  EXPECT_EQ(contents(cluster.folder + "/iter_0000010"), expected);
  // Both machines of a pair: what is left does not suffice, so the run goes back to the checkpoint of all.
  cluster.lose(0);
  cluster.lose(1);
  EXPECT_EQ(go_on(4, "do not hold all of the local checkpoint of iteration 9"), expected);
}

TEST(LocalCheckpoints, GoOnUnderAnotherLayout) {
  Cluster cluster({});
  cluster.run(2, {"-tp", "2", "--non-persistent-local-ckpt-algo", "atomic"});
  forget_the_end(cluster.folder);
  const std::string said = cluster.run(2);
  EXPECT_NE(said.find(kLoaded), std::string::npos) << said;
  // With --ckpt-step nothing else counts.
  const std::string back = cluster.run(2, {"--ckpt-step", "5"});
  EXPECT_NE(back.find("loaded " + cluster.folder + "/iter_0000005"), std::string::npos) << back;
}

// Ranks of one process share a disk. Without copies each machine's part is needed.
TEST(LocalCheckpoints, OfThreads) {
  TempDir dir;
  const std::vector<std::string> args = in_folder(
      dir / "c", {"--ranks", "4", "-tp", "2", "--non-persistent-ckpt-type", "local", "--async-save",
                  "--non-persistent-save-interval", "3", "--non-persistent-local-ckpt-dir", dir / "disk"});
  ASSERT_EQ(train(args).code, 0);
  const auto expected = contents(dir / "c/iter_0000010");
  forget_the_end(dir / "c");
  expect_said(train(args), 0, kLoaded);
  EXPECT_EQ(contents(dir / "c/iter_0000010"), expected);
  // Another run that uses the same disk is another run.
  forget_the_end(dir / "c");
  std::vector<std::string> other = args;
  other[1] = dir / "d";
  expect_said(train(other), 0, "loaded " + dir / "c/iter_0000005");
  expect_said(train(args), 0, kLoaded);
}

// A save that was killed: some ranks have a share of the newest set, others not yet. The one before is whole.
TEST(LocalCheckpoints, TheNewestCompleteSetCounts) {
  TempDir dir;
  const std::vector<std::string> args = in_folder(
      dir / "c", {"--ranks", "2", "--use-distributed-optimizer", "--non-persistent-ckpt-type", "local",
                  "--non-persistent-save-interval", "3", "--non-persistent-local-ckpt-dir", dir / "disk"});
  ASSERT_EQ(train(args).code, 0);
  const auto expected = contents(dir / "c/iter_0000010");
  forget_the_end(dir / "c");
  fs::path whole;
  for (const auto& entry : fs::recursive_directory_iterator(dir / "disk"))
    if (entry.path().filename().string().starts_with("iter_0000009.")) whole = entry.path();
  ASSERT_FALSE(whole.empty());
  const fs::path newer = whole.parent_path() / "iter_0000012.0123456789abcdef";
  fs::create_directories(newer);
  fs::copy(whole / "rank_00000.by_00000", newer / "rank_00000.by_00000", fs::copy_options::recursive);
  fs::copy(whole / "rank_00001.by_00001", newer / "rank_00001.by_00001.partial", fs::copy_options::recursive);
  const Outcome outcome = train(args);
  expect_said(outcome, 0, "do not hold all of the local checkpoint of iteration 12");
  expect_said(outcome, 0, kLoaded);
  EXPECT_EQ(contents(dir / "c/iter_0000010"), expected);
}

TEST(LocalCheckpoints, AFullDiskIsToldAndTheRunGoesOn) {
  TempDir dir;
  write_text(dir / "file", "");
  const std::vector<std::string> args =
      in_folder(dir / "c", {"--non-persistent-ckpt-type", "local", "--non-persistent-save-interval", "3",
                            "--non-persistent-local-ckpt-dir", dir / "disk"});
  ASSERT_EQ(train(args).code, 0);
  forget_the_end(dir / "c");
  // The folder of the run's sets is no folder any more.
  for (const auto& entry : fs::directory_iterator(dir / "disk")) {
    const fs::path path = entry.path();
    fs::remove_all(path);
    write_text(path.string(), "");
  }
  expect_said(train(args), 0, "the run goes on: the local checkpoint was not saved");
}

}  // namespace
}  // namespace megatron::testing
