// Runs that go on within their processes after faults: they end at the same iteration, with the weights of a
// run that was restarted by hand in the same layouts.
#include <atomic>
#include <random>
#include <regex>
#include <set>

#include "fault/processes.h"
#include "megatron/comm/rendezvous/socket.h"
#include "megatron/parallel/replica_layout.h"
#include "megatron/training/run/batch_schedule.h"
#include "megatron/training/run/fault_injector.h"
#include "megatron/training/run/restart.h"

namespace megatron::testing {
namespace {

using Kind = InjectedFault::Kind;
using namespace std::chrono_literals;

std::vector<InjectedFault> parse(const std::string& text) {
  return parse_faults(std::vector<std::string>{text});
}

TEST(InjectFault, IsWrittenAsKindRankIteration) {
  EXPECT_EQ(parse("kill@2:10"),
            (std::vector<InjectedFault>{{.kind = Kind::kill, .rank = 2, .iteration = 10}}));
  EXPECT_EQ(parse("throw@0:1,slow@3:4=0.5 network@1-2:7"),
            (std::vector<InjectedFault>{{.kind = Kind::throws, .rank = 0, .iteration = 1},
                                        {.kind = Kind::slow, .rank = 3, .iteration = 4, .seconds = 0.5},
                                        {.kind = Kind::network, .rank = 1, .peer = 2, .iteration = 7}}));
  for (const char* wrong :
       {"kill", "kill@2", "die@2:10", "kill@x:10", "kill@2:0", "network@2:10", "slow@1:2=x"})
    EXPECT_THROW(parse(wrong), ConfigError) << wrong;
}

TEST(InjectFault, OfAResultIsFound) {
  expect_said(train({"--inject-fault", "nan@0:5"}), 3, "the loss is not finite");
  expect_said(train({"--ranks", "2", "--inject-fault", "bit_flip@1:5",
                     "--check-weight-hash-across-dp-replicas-interval", "1"}),
              3, "on rank 1 is not that of rank 0: one of the two is wrong");
  expect_said(train({"--ranks", "4", "--inject-fault", "bit_flip@0:5",
                     "--check-weight-hash-across-dp-replicas-interval", "1"}),
              3, "on rank 0 is not that of most of its peers (ranks 0 1 2 3)");
  // Rank 5 is the third replica's second tensor-parallel rank: replicas of its slot are compared.
  expect_said(train({"--ranks", "6", "-tp", "2", "--global-batch-size", "6", "--inject-fault", "bit_flip@5:5",
                     "--check-weight-hash-across-dp-replicas-interval", "1"}),
              3, "on rank 5 is not that of most of its peers (ranks 1 3 5)");
  TempDir dir;
  expect_said(train({"--save", dir / "c", "--save-interval", "5", "--inject-fault", "disk_full@0:5"}), 0,
              "iteration 5 is not saved, the run goes on");
}

Config trains_on(int64_t tp, bool may_shrink) {
  Config config;
  config.model.num_layers = 2;
  config.model.num_attention_heads = 8;
  config.model.attention_dropout = may_shrink ? 0 : 0.1;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 24;
  config.parallel.tensor_model_parallel_size = tp;
  config.run.ranks = 1;
  return config;
}

std::vector<int> all_but(int processes, const std::set<int>& lost) {
  std::vector<int> left;
  for (int process = 0; process < processes; ++process)
    if (!lost.contains(process)) left.push_back(process);
  return left;
}

using Lost = std::vector<std::string>;

TEST(RestartLayout, DropsReplicasThatCannotShrink) {
  const Config config = trains_on(2, false);
  EXPECT_EQ(restart_layout(config, 16, all_but(16, {})).processes, all_but(16, {}));
  const RestartLayout layout = restart_layout(config, 16, all_but(16, {15}));
  EXPECT_EQ(layout.processes, all_but(12, {}));  // 7 replicas cannot share 24 sequences
  EXPECT_EQ(layout.slots, 12);
  EXPECT_TRUE(layout.slot_of_rank.empty());
  EXPECT_EQ(restart_layout(config, 2, {0, 1}).processes, all_but(2, {}));
  EXPECT_TRUE(restart_layout(config, 2, {1}).processes.empty());
  // What is left of a replica fills what another one has lost.
  EXPECT_EQ(restart_layout(config, 8, all_but(8, {1, 6})).processes, (std::vector<int>{0, 7, 2, 3, 4, 5}));
}

TEST(RestartLayout, ShrinksReplicas) {
  const Config config = trains_on(4, true);
  const RestartLayout layout = restart_layout(config, 8, all_but(8, {6}));
  EXPECT_EQ(layout.processes, all_but(8, {6}));
  EXPECT_EQ(layout.slots, 8);
  EXPECT_EQ(layout.slot_of_rank, (std::vector<int>{0, 1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(layout.lost, (Lost{"1.0.0:2"}));
  // No rank of a replica is left: it is dropped, and the other one goes on with what it has.
  const RestartLayout half = restart_layout(config, 8, all_but(8, {0, 1, 2, 3, 5}));
  EXPECT_EQ(half.processes, (std::vector<int>{4, 6, 7}));
  EXPECT_EQ(half.slots, 4);
  EXPECT_EQ(half.slot_of_rank, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(half.lost, (Lost{"0.0.0:1"}));
  EXPECT_EQ(restart_layout(config, 8, {7}).processes, (std::vector<int>{7}));
}

TEST(RestartLayout, StagesOfAReplicaShrinkAlike) {
  Config config = trains_on(2, true);
  config.parallel.pipeline_model_parallel_size = 2;
  // Ranks 0 1 | 2 3 are the first stage of replicas 0 and 1, 4 5 | 6 7 the second.
  const RestartLayout layout = restart_layout(config, 8, all_but(8, {7}));
  EXPECT_EQ(layout.lost, (Lost{"1.0.1:1"}));
  config.parallel.non_active_ranks_per_dp = layout.lost;
  const ReplicaLayout replicas(layout.sizes(config));
  EXPECT_EQ(replicas.tp_sizes(), (std::vector<int>{2, 1}));
  EXPECT_EQ(replicas.idle(), (std::vector<int>{3}));
  // A stage is gone: its replica is dropped, and nobody needs the processes of its other stage.
  EXPECT_EQ(restart_layout(config, 8, all_but(8, {6, 7})).processes, (std::vector<int>{0, 1, 4, 5}));
}

TEST(RestartLayout, ReservesStepIn) {
  Config config = trains_on(4, true);
  config.inprocess_restart.active_world_size = 8;
  EXPECT_EQ(restart_layout(config, 10, all_but(10, {})).processes, all_but(8, {}));
  const RestartLayout one = restart_layout(config, 10, all_but(10, {2}));
  EXPECT_EQ(one.processes, (std::vector<int>{0, 1, 8, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(one.lost.empty());
  EXPECT_EQ(restart_layout(config, 10, all_but(10, {2, 8, 5, 6})).lost.size(), 2U);

  Config spares = trains_on(4, true);  // slot 3 of replica 0 idles
  spares.parallel.tp_spares = 1;
  const RestartLayout begin = restart_layout(spares, 8, all_but(8, {}));
  EXPECT_EQ(begin.processes, all_but(8, {3}));
  EXPECT_EQ(begin.lost, (Lost{"0.0.0:3"}));
  const RestartLayout after = restart_layout(spares, 8, all_but(8, {1}));
  EXPECT_EQ(after.processes, (std::vector<int>{0, 3, 2, 4, 5, 6, 7}));
  EXPECT_EQ(after.lost, (Lost{"0.0.0:3"}));
}

// Three ranks of a replica hold what fits into their memory, two would not.
TEST(RestartLayout, DropsReplicasThatWouldNotFit) {
  const Config config = trains_on(4, true);
  const RestartLayout shrunk = restart_layout(config, 8, all_but(8, {6}), 3);
  EXPECT_EQ(shrunk.lost, (Lost{"1.0.0:2"}));
  EXPECT_EQ(shrunk.note, "");
  const RestartLayout dropped = restart_layout(config, 8, all_but(8, {6, 7}), 3);
  EXPECT_EQ(dropped.processes, all_but(4, {}));
  EXPECT_TRUE(dropped.lost.empty());
  EXPECT_EQ(dropped.note,
            "a replica of 2 of 4 tensor-parallel ranks would not fit into memory and is dropped");
  EXPECT_EQ(restart_layout(config, 8, all_but(8, {6, 7}), 2).lost.size(), 2U);
  // What is left of it completes the other one.
  EXPECT_EQ(restart_layout(config, 8, all_but(8, {0, 6, 7}), 3).processes, (std::vector<int>{4, 1, 2, 3}));
  EXPECT_TRUE(restart_layout(config, 4, {0, 1}, 3).processes.empty());
}

// Invariant I5 holds after any sequence of losses, and what is chosen can be built.
TEST(RestartLayout, OfAnyLossesCanBeBuilt) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Config config = trains_on(1 << pick(4), pick(4) > 0);
    config.parallel.pipeline_model_parallel_size = 1 + pick(2);
    config.run.ranks = 1 << pick(2);
    const auto model = static_cast<int>(config.parallel.tensor_model_parallel_size) * (1 + pick(2)) *
                       static_cast<int>(config.parallel.pipeline_model_parallel_size);
    const int processes = std::max<int>(1, 2 * model / static_cast<int>(config.run.ranks));
    if (processes * config.run.ranks % model != 0) continue;
    std::set<int> lost;
    while (std::ssize(lost) < processes) {
      const RestartLayout layout = restart_layout(config, processes, all_but(processes, lost));
      if (layout.processes.empty()) break;
      Config applied = config;
      layout.apply(applied);
      const ParallelSizes sizes = layout.sizes(applied);
      const std::set<int> distinct(layout.processes.begin(), layout.processes.end());
      ASSERT_EQ(distinct.size(), layout.processes.size());
      for (const int process : layout.processes) ASSERT_FALSE(lost.contains(process));
      ASSERT_NO_THROW(parallel_groups(sizes));
      ASSERT_NO_THROW(BatchSchedule(applied, sizes.dp()));
      lost.insert(pick(processes));
    }
  }
}

// Threads: nothing is lost, so the end is that of a run that nobody disturbed.
TEST(Restart, ThreadsGoOnFromMemory) {
  const std::vector<std::vector<std::string>> layouts = {{"--ranks", "4"},
                                                         {"--ranks", "4", "-tp", "2", "-pp", "2"},
                                                         {"--ranks", "4", "--use-distributed-optimizer"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout.back());
    TempDir dir;
    std::vector<std::string> args = layout;
    args.insert(args.end(), {"--save", dir / "c", "--inprocess-restart", "--inprocess-soft-timeout", "1",
                             "--inject-fault", "throw@2:4,hang@1:8"});
    const Outcome outcome = train(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    // A rank that has not come to the end of iteration 3 when another one throws takes the others back to 2.
    // On a busy machine steps may be late, too: restarts are not numbered here.
    const std::regex thrown(
        R"(restart \d+: a planted fault of rank 2 before iteration 4; all 1 processes go on .*from iteration [23] in memory)");
    EXPECT_TRUE(std::regex_search(outcome.err, thrown)) << outcome.err;
    // Whoever waits for another one first: the rank that holds all of them up is named.
    const std::regex culprit(
        R"(restart \d+: .*within 1\.0 s: missing ranks (1|[0-9 ]+; held up by rank 1);.* from iteration [67] in memory)");
    EXPECT_TRUE(std::regex_search(outcome.err, culprit)) << outcome.err;
    EXPECT_EQ(contents(dir / "c/iter_0000010"), undisturbed(layout));
  }
}

TEST(Restart, WithoutSnapshotsFromTheCheckpoint) {
  TempDir dir;
  const Outcome outcome =
      train(in_folder(dir / "c", {"--ranks", "2", "--inprocess-restart", "--inprocess-snapshot-interval", "0",
                                  "--inject-fault", "throw@1:8"}));
  expect_said(outcome, 0, "from iteration 5 in a checkpoint");
  EXPECT_EQ(contents(dir / "c/iter_0000010"), undisturbed({"--ranks", "2"}));
}

TEST(Restart, GivesUp) {
  // The loss is NaN again each time: that is no fault of a machine.
  expect_said(train({"--ranks", "2", "--inprocess-restart", "--inject-fault", "nan@0:5", "--lr", "1e30"}), 3,
              "is not finite");
  expect_said(train({"--ranks", "2", "--inprocess-restart", "--inprocess-max-iterations", "1",
                     "--inject-fault", "throw@0:3,throw@1:6"}),
              3, "a planted fault of rank 1 before iteration 6");
}

TEST(Stragglers, ASlowRankIsNamed) {
  const Outcome outcome =
      train({"--ranks", "4", "-tp", "2", "--attention-dropout", "0", "--train-iters", "40",
             "--detect-stragglers", "--straggler-report-time", "0.2", "--inject-fault", "slow@2:1=0.03"});
  expect_said(outcome, 0, "stragglers: rank 2 on ");
  // On a busy machine another rank may be slow now and then.
  const auto named = [&](int rank) {
    const std::regex words(fmt::format("stragglers: rank {} on ", rank));
    return std::distance(std::sregex_iterator(outcome.err.begin(), outcome.err.end(), words), {});
  };
  for (const int other : {0, 1, 3}) EXPECT_LT(named(other), named(2)) << outcome.err;
  TempDir dir;
  expect_said(
      train({"--ranks", "2", "--train-iters", "1000", "--save", dir / "c", "--detect-stragglers",
             "--straggler-report-time", "0.1", "--stop-if-straggler", "--inject-fault", "slow@1:1=0.03"}),
      0, "stopped by a slow rank after iteration");
}

// How many lines a file has that somebody else writes.
int64_t lines_of(const std::string& path) {
  return std::filesystem::exists(path) ? std::ranges::count(read_text(path), '\n') : 0;
}

TEST(Stragglers, AreSwitchedWhileARunGoesOn) {
  TempDir dir;
  const HeldPort port;
  const std::string notice = dir / "notice", metrics = dir / "metrics";
  Outcome outcome;
  std::atomic<bool> ended = false;
  std::thread run([&] {
    outcome = train({"--train-iters", "100000", "--detect-stragglers", "--straggler-report-time", "0",
                     "--disable-straggler-on-startup", "--straggler-ctrlr-port",
                     std::to_string(port.number()), "--inject-fault", "slow@0:1=0.02", "--log-interval", "1",
                     "--metrics", metrics, "--save", dir / "c", "--preemption-file", notice});
    ended = true;
  });
  std::string answer;
  while (answer.empty() && !ended) try {
      std::this_thread::sleep_for(20ms);
      Patience once(0s);
      const Socket client = Socket::connect("127.0.0.1", port.number(), once);
      client.write("GET / HTTP/1.0\r\n\r\n", 18);
      std::array<char, 256> text{};
      if (const ssize_t got = ::read(client.descriptor(), text.data(), text.size()); got > 0)
        answer.assign(text.data(), static_cast<size_t>(got));
    } catch (const Error&) {  // it has not begun yet
    }
  const int64_t before = lines_of(metrics);
  while (!ended && lines_of(metrics) < before + 5) std::this_thread::sleep_for(20ms);
  while (!ended) {  // the scheduler ends it
    write_text(notice, "");
    std::this_thread::sleep_for(20ms);
  }
  run.join();
  EXPECT_NE(answer.find("reports on slow ranks are on"), std::string::npos) << answer;
  expect_said(outcome, 18, "stragglers: scores");
  EXPECT_EQ(train({"--detect-stragglers", "--straggler-report-time", "0", "--disable-straggler-on-startup"})
                .err.find("stragglers: scores"),
            std::string::npos);
}

TEST(Preemption, AFileSavesAndAsksForAnotherStart) {
  TempDir dir;
  const std::string notice = dir / "notice";
  write_text(notice, "");
  std::filesystem::last_write_time(notice, std::filesystem::file_time_type::clock::now() - 1h);
  EXPECT_EQ(train({"--save", dir / "old", "--preemption-file", notice}).code, 0);  // of an earlier start
  std::atomic<bool> ended = false;
  std::thread scheduler([&] {
    while (!ended) {
      std::this_thread::sleep_for(20ms);
      write_text(notice, "");
    }
  });
  expect_said(train({"--save", dir / "c", "--preemption-file", notice, "--train-iters", "100000"}), 18,
              ", which is saved (exit code 18)");
  ended = true;
  scheduler.join();
}

TEST(SectionTimeouts, AreLearned) {
  TempDir dir;
  const std::vector<std::string> args =
      in_folder(dir / "c", {"--enable-ft-package", "--calc-ft-timeouts", "--train-iters", "20"});
  ASSERT_EQ(train(args).code, 0);
  const Json learned = Json::parse(read_text(dir / "c/ft_state.json"), "ft_state.json");
  EXPECT_GT(learned.at("step").at("timeout").as_double(), learned.at("step").at("max_seen").as_double());
  EXPECT_GT(learned.at("checkpointing").at("timeout").as_double(), 0);
  EXPECT_EQ(learned.find("setup"), nullptr);  // nothing was loaded
}

}  // namespace
}  // namespace megatron::testing
