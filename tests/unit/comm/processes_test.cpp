#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <thread>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/launch.h"
#include "megatron/comm/rendezvous/socket.h"
#include "support/held_port.h"
#include "support/temp_dir.h"
#include "unit/comm/exercise.h"
#include "unit/comm/faulty_ranks.h"
#include "unit/comm/other_process.h"
#include "unit/comm/wrap.h"

// Processes that are threads of this one: each has a world of its own and reaches the others by TCP alone.
namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::expect_contains;
using testing::stay_away;
using testing::TempDir;
using testing::wait_for;
using testing::wait_in_a_row;
using testing::wrap;

// What is noticed at once does not take the time-out, whatever a busy machine adds.
constexpr auto kTimeout = 10min, kAtOnce = 1min;

// Runs fn on every rank; returns what each rank was told where it failed, "" where it returned.
std::vector<std::string> run_processes(int processes, int ranks_each, const RankFunction& fn) {
  TempDir folder;
  std::vector<std::string> told(static_cast<size_t>(processes * ranks_each));
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process)
    threads.emplace_back([&, process] {
      try {
        Launch launch(
            {.ranks = ranks_each,
             .comm = Connection::Tcp,
             .timeout = kTimeout,
             .place = {
                 .process = process, .processes = processes, .store_folder = folder.path() + "/store"}});
        EXPECT_EQ(launch.world_size(), processes * ranks_each);
        launch.run([&](int rank, ProcessGroup& world) {
          try {
            fn(rank, world);
          } catch (const std::exception& error) {
            told[static_cast<size_t>(rank)] = error.what();
            throw;
          }
        });
      } catch (const CommError&) {
      } catch (const std::exception& error) {
        if (told[static_cast<size_t>(process * ranks_each)].empty()) ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return told;
}

std::vector<std::vector<uint8_t>> by_threads(int ranks) {
  std::vector<std::vector<uint8_t>> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, ProcessGroup& world) {
    results[static_cast<size_t>(rank)] = testing::Exercise(world).run();
  });
  return results;
}

TEST(Processes, ReturnTheBitsOfThreads) {
  for (auto [processes, each] : {std::pair{2, 1}, {2, 2}, {3, 1}}) {
    const auto expected = by_threads(processes * each);
    std::vector<std::vector<uint8_t>> results(expected.size());
    for (const std::string& problem : run_processes(processes, each, [&](int rank, ProcessGroup&world) {
           results[static_cast<size_t>(rank)] = testing::Exercise(world).run();
         }))
      EXPECT_EQ(problem, "");
    for (size_t rank = 0; rank < results.size(); ++rank)
      EXPECT_TRUE(results[rank] == expected[rank]) << "rank " << rank << " of " << processes << " x " << each;
  }
}

// An operation ends while the ranks of another process compute.
TEST(Processes, OperationsEndWhileARankIsBusy) {
  run_processes(2, 1, [&](int rank, ProcessGroup& world) {
    std::vector<float> values(100000, 1.f), token(1);
    Work work = world.all_reduce(wrap(values));
    if (rank == 0) {
      world.recv(wrap(token), 1).wait();  // sent only after rank 1 has its sum
      work.wait();
    } else {
      work.wait();
      world.send(wrap(token), 0).wait();
    }
    EXPECT_EQ(values, std::vector<float>(100000, 2.f));
  });
}

TEST(ProcessFaults, MismatchesNameBothCalls) {
  const auto told = run_processes(2, 2, [](int rank, ProcessGroup& world) {
    std::vector<float> values(12), all(48);
    world.barrier();
    if (rank == 3)
      world.all_gather(wrap(values), wrap(all)).wait();
    else
      world.all_reduce(wrap(values)).wait();
  });
  for (const std::string& message : told)
    expect_contains(message, {"comm mismatch on group world (ranks 0 1 2 3): operation #1",
                              "all_gather fp32[12]", "all_reduce fp32[12] sum", "processes_test.cpp:"});
}

TEST(ProcessFaults, CountsOfAllToAllMustAgree) {
  const auto told = run_processes(2, 1, [](int rank, ProcessGroup& world) {
    std::vector<float> in(4), out(rank == 0 ? 4u : 5u);
    world
        .all_to_all(wrap(in), wrap(out), {2, 2},
                    rank == 0 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{3, 2})
        .wait();
    world.barrier();
  });
  expect_contains(told[1], {"all_to_all #0", "rank 0 sends 2 elements to rank 1", "expects 3"});
}

TEST(ProcessFaults, TimeoutNamesTheRankAtTheEndOfTheRow) {
  std::atomic<int> called = 0;
  const auto told =
      run_processes(4, 1, [&](int rank, ProcessGroup& world) { wait_in_a_row(rank, world, called); });
  expect_contains(told[0], {"did not end within 0.5 s: missing ranks 1; held up by rank 3\n",
                            "rank 3 waits for nobody; its last call here: "});
}

TEST(ProcessFaults, TimeoutTellsWhoIsMissingAndWhereTheyAre) {
  std::atomic<int> ready = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto told = run_processes(3, 1, [&](int rank, ProcessGroup& world) {
    ProcessGroup dp = world.split(0, 0, "dp");
    std::vector<bf16> values(6);
    dp.all_reduce(wrap(values)).wait();
    ++ready;
    wait_for(ready, 3);
    if (rank == 1) return stay_away(world);
    world.set_timeout(500ms);
    dp.all_reduce(wrap(values), ReduceOp::Max).wait();
  });
  for (const std::string& message : told)
    expect_contains(message,
                    {"all_reduce bf16[6] max #1 on group dp (ranks 0 1 2) did not end within 0.5 s: "
                     "missing ranks 1\n",
                     "called all_reduce bf16[6] max at processes_test.cpp:",
                     "rank 1 did not come; its last call here: all_reduce bf16[6] sum #0 on group dp "
                     "at processes_test.cpp:"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kAtOnce);
}

TEST(ProcessFaults, RankThatThrowsOrReturnsWakesTheOthers) {
  auto told = run_processes(2, 2, [](int rank, ProcessGroup& world) {
    std::vector<float> values(6);
    if (rank == 3) fail("disk full");
    world.all_reduce(wrap(values)).wait();
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(told[static_cast<size_t>(rank)], "rank 3 stopped: disk full");
  told = run_processes(2, 1, [](int rank, ProcessGroup& world) {
    std::vector<float> values(6);
    if (rank == 0) world.all_reduce(wrap(values)).wait();
  });
  expect_contains(told[0], {"all_reduce fp32[6] sum #0 on group world", "cannot end: a rank is gone",
                            "rank 1 did not come, it has returned"});
  told = run_processes(2, 1, [](int rank, ProcessGroup& world) {
    if (rank == 1) return world.abort("the loss is NaN");
    world.barrier();
  });
  EXPECT_EQ(told[0], "rank 1 stopped group world: the loss is NaN");
}

// The other process of the test below, which kills it.
TEST(ProcessToKill, DISABLED_Waits) {
  Launch launch(
      {.timeout = kTimeout, .place = find_place([](const char* name) { return std::getenv(name); })});
  try {
    launch.run([](int, ProcessGroup& world) {
      world.barrier();
      std::vector<float> never(1);
      world.recv(wrap(never), 0).wait();
    });
  } catch (const CommError&) {
  }
}

TEST(ProcessFaults, AKilledProcessIsNoticedAtOnce) {
  TempDir folder;
  const testing::OtherProcess other("ProcessToKill.*",
                                    {"RANK=1", "WORLD_SIZE=2", "MEGATRON_STORE=" + folder.path() + "/store"});
  std::string told;
  std::chrono::steady_clock::time_point killed;
  try {
    Launch launch({.timeout = kTimeout,
                   .place = {.process = 0, .processes = 2, .store_folder = folder.path() + "/store"}});
    launch.run([&](int, ProcessGroup& world) {
      world.barrier();
      other.kill(SIGKILL);
      killed = std::chrono::steady_clock::now();
      std::vector<float> values(6);
      world.all_reduce(wrap(values)).wait();
    });
  } catch (const std::exception& error) {
    told = error.what();
  }
  expect_contains(told, {"all_reduce fp32[6] sum #1 on group world (ranks 0 1) cannot end: a rank is gone",
                         "rank 0 called all_reduce fp32[6] sum at processes_test.cpp:",
                         "rank 1 did not come, its process has died"});
  EXPECT_LT(std::chrono::steady_clock::now() - killed, kAtOnce);
}

TEST(Launch, FindsItsPlace) {
  const auto place = [](std::map<std::string, std::string> variables) {
    return find_place([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  using Starter = LaunchPlace::Starter;
  EXPECT_EQ(place({}).starter, Starter::Nobody);
  EXPECT_EQ(place({}).processes, 1);
  const LaunchPlace torchrun = place({{"RANK", "3"},
                                      {"WORLD_SIZE", "8"},
                                      {"MASTER_ADDR", "10.0.0.1"},
                                      {"MASTER_PORT", "4000"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(torchrun.starter, Starter::Torchrun);
  EXPECT_EQ(torchrun.process, 3);
  EXPECT_EQ(torchrun.processes, 8);
  EXPECT_EQ(torchrun.master_addr, "10.0.0.1");
  EXPECT_EQ(torchrun.master_port, 4000);
  EXPECT_EQ(place({{"RANK", "0"},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "a"},
                   {"MASTER_PORT", "4000"},
                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                .master_port,
            4001);
  const LaunchPlace mpirun = place({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}});
  EXPECT_EQ(mpirun.starter, Starter::OpenMpi);
  EXPECT_EQ(mpirun.process, 2);
  const LaunchPlace srun = place({{"SLURM_STEP_ID", "0"},
                                  {"SLURM_PROCID", "1"},
                                  {"SLURM_NTASKS", "2"},
                                  {"SLURM_JOB_ID", "123"},
                                  {"SLURM_JOB_NODELIST", "gpu[017-019,40]"}});
  EXPECT_EQ(srun.starter, Starter::Slurm);
  EXPECT_EQ(srun.master_addr, "gpu017");
  EXPECT_EQ(srun.master_port, 20123);
  EXPECT_EQ(srun.processes, 2);
  const LaunchPlace step = place({{"SLURM_STEP_ID", "0"},
                                  {"SLURM_PROCID", "5"},
                                  {"SLURM_NTASKS", "16"},
                                  {"SLURM_STEP_NUM_TASKS", "8"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                  {"SLURM_STEP_NODELIST", "a,b"}});
  EXPECT_EQ(step.process, 5);
  EXPECT_EQ(step.processes, 8);
  EXPECT_EQ(step.processes_here, 4);
  EXPECT_EQ(step.master_addr, "a");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("n[3,5]"), "n3");
  EXPECT_THROW(place({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), ConfigError);
  EXPECT_THROW(place({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), ConfigError);
  EXPECT_THROW(place({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), ConfigError);
  EXPECT_THROW(place({{"MASTER_PORT", "70000"}}), ConfigError);
}

TEST(Launch, RefusesWhatCannotWork) {
  EXPECT_THROW(connection_from_name("smoke"), UsageError);
  EXPECT_EQ(connection_from_name("mpi"), Connection::Mpi);
  EXPECT_THROW(Launch({.comm = Connection::Threads, .place = {.processes = 2}}), ConfigError);
  EXPECT_THROW(Launch({.place = {.processes = 2}}), ConfigError);
  try {
    Launch alone({.timeout = 200ms,
                  .place = {.process = 1, .processes = 2, .master_addr = "127.0.0.1", .master_port = 1}});
    FAIL() << "met nobody";
  } catch (const Error& error) {
    expect_contains(error.what(), {"127.0.0.1:1 cannot be reached", "MASTER_ADDR"});
  }
  const Socket taken = Socket::listen(0);
  try {
    Socket::listen(taken.local_port());
    FAIL() << "two listen to one port";
  } catch (const Error& error) {
    expect_contains(error.what(), {"cannot be listened to: Address already in use", "MASTER_PORT"});
  }
}

// The first process serves the store; others may come before it.
TEST(Launch, MeetsByTcp) {
  const testing::HeldPort port;
  std::vector<std::thread> threads;
  for (int process : {1, 0})
    threads.emplace_back([&, process] {
      if (process == 0) std::this_thread::sleep_for(100ms);
      Launch launch({.timeout = 30s,
                     .place = {.process = process,
                               .processes = 2,
                               .master_addr = "127.0.0.1",
                               .master_port = port.number()},
                     .to_gather = 10 + process});
      EXPECT_EQ(launch.gathered(), (std::vector<int64_t>{10 + process, 11 - process}));
      for (int round = 0; round < 3; ++round)  // one world serves several runs
        launch.run([&](int rank, ProcessGroup& world) {
          std::vector<int32_t> value(1, rank + 1);
          world.all_reduce(wrap(value)).wait();
          EXPECT_EQ(value[0], 3);
        });
    });
  for (std::thread& thread : threads) thread.join();
}

// A context goes with its run, and with it whoever listens there.
TEST(Launch, ForgetsTheContextOfTheRunBefore) {
  struct Listener final : Tracer {
    void op(const char*, Phase, const Cost&) override {}
    void begin(const char*) override { ++heard; }
    void end() override {}
    int heard = 0;
  };
  TempDir folder;
  std::vector<std::thread> threads;
  for (int process : {0, 1})
    threads.emplace_back([&, process] {
      Launch launch(
          {.timeout = 30s,
           .place = {.process = process, .processes = 2, .store_folder = folder.path() + "/store"}});
      Listener listener;
      RankContext ctx;  // still there in the second run, so that a mistake can be seen
      ctx.tracer = &listener;
      launch.run([&](int, ProcessGroup& world) {
        world.attach(ctx);
        world.barrier();
      });
      EXPECT_EQ(listener.heard, 2);  // the barrier and the wait for it
      launch.run([](int, ProcessGroup& world) { world.barrier(); });
      EXPECT_EQ(listener.heard, 2);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace megatron
