// Worlds that lose processes and go on. Processes are threads of this one, connected by TCP alone.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "megatron/comm/launch.h"
#include "support/temp_dir.h"
#include "unit/comm/faulty_ranks.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::stay_away;
using testing::TempDir;
using testing::wait_for;
using testing::wait_until;

constexpr auto kGrace = 1min;  // of processes that all come

LaunchOptions options_of(const TempDir& folder, int process, int processes, int ranks = 1) {
  return {.ranks = ranks,
          .comm = Connection::Tcp,
          .timeout = 1min,
          .heartbeat = {.interval = 50ms, .timeout = 30s},
          .place = {.process = process, .processes = processes, .store_folder = folder.path() + "/store"}};
}

// What all ranks of the generation add up to.
int32_t sum_of_ones(Launch& launch) {
  int32_t sum = 0;
  launch.run([&](int rank, ProcessGroup& world) {
    int32_t value = 1;
    world.all_reduce(Tensor::wrap(&value, {1}, DType::I32)).wait();
    if (rank == launch.generation().first_rank) sum = value;
  });
  return sum;
}

// Runs `fn` in one thread a process; gives what each threw.
std::vector<std::string> in_processes(int processes, const std::function<void(Launch&, int process)>& fn,
                                      int ranks = 1, const TrainingChoice& training = {}) {
  TempDir folder;
  std::vector<std::string> errors(static_cast<size_t>(processes));
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process)
    threads.emplace_back([&, process] {
      LaunchOptions options = options_of(folder, process, processes, ranks);
      options.training = training;
      try {
        Launch launch(options);
        fn(launch, process);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(process)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Generations, GoOnAfterAnException) {
  const auto errors = in_processes(
      3,
      [](Launch& launch, int process) {
        for (uint32_t number = 1; number <= 5; ++number) {
          EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
            world.barrier();  // so that nobody still waits for the sum of the run before
            require(rank != static_cast<int>(number) % 6, "rank {} fails", rank);
            world.barrier();
          }),
                       Error);
          launch.rendezvous({});
          EXPECT_EQ(launch.generation().number, number);
          EXPECT_EQ(launch.generation().first_rank, 2 * process);
          EXPECT_EQ(sum_of_ones(launch), 6);
        }
      },
      2);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Generations, ThreadsOfOneProcessGoOn) {
  Launch launch({.ranks = 4});
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
      if (rank == round % 4) fail("rank {} fails", rank);
      world.barrier();
    }),
                 Error);
    launch.rendezvous({});
    EXPECT_EQ(sum_of_ones(launch), 4);
  }
}

// The first process, which served the store, goes too.
TEST(Generations, GoOnWithoutALostProcess) {
  for (const int lost : {0, 2, 3}) {
    const auto errors = in_processes(4, [&](Launch& launch, int process) {
      try {
        launch.run([&](int rank, ProcessGroup& world) {
          if (rank == lost)
            for (int other = 0; other < 4; ++other)
              if (other != rank) world.disconnect(other);
          while (true) world.barrier();  // until it is noticed
        });
        ADD_FAILURE() << "nothing was lost";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.exit_code(), 19);
      }
      if (process == lost) return;
      launch.rendezvous({.grace = kGrace});
      EXPECT_EQ(launch.generation().world, 3);
      EXPECT_EQ(launch.generation().first_rank, process - (process > lost ? 1 : 0));
      EXPECT_EQ(sum_of_ones(launch), 3);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Generations, LeaveOutTheHigherOfTwoThatCannotReachEachOther) {
  const auto errors = in_processes(4, [](Launch& launch, int) {
    EXPECT_THROW(launch.run([](int rank, ProcessGroup& world) {
      if (rank == 0) world.disconnect(2);
      while (true) world.barrier();  // until it is noticed
    }),
                 PeerLost);
    launch.rendezvous({.grace = kGrace});
    EXPECT_EQ(sum_of_ones(launch), 3);
  });
  for (size_t process : {0, 1, 3}) EXPECT_EQ(errors[process], "");
  EXPECT_NE(errors[2].find("was left out of generation 1"), std::string::npos) << errors[2];
}

// A process that does not come is given up, and finds out when it does. Nobody waits for it again.
TEST(Generations, GoOnWithoutOneThatDoesNotCome) {
  std::atomic<int> coming = 0, gone_on = 0;
  const auto errors = in_processes(3, [&](Launch& launch, int process) {
    EXPECT_THROW(launch.run([](int, ProcessGroup&) { fail("all fail"); }), Error);
    if (process == 0) {
      wait_for(gone_on, 2);
    } else {
      ++coming;
      wait_for(coming, 2);
    }
    launch.rendezvous({.grace = 2s});
    ++gone_on;
    EXPECT_EQ(sum_of_ones(launch), 2);
    EXPECT_THROW(launch.run([](int, ProcessGroup& world) {
      world.barrier();
      fail("all fail again");
    }),
                 Error);
    const auto begin = std::chrono::steady_clock::now();
    launch.rendezvous({.grace = kGrace});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kGrace);
    EXPECT_EQ(sum_of_ones(launch), 2);
  });
  EXPECT_NE(errors[0].find("was left out"), std::string::npos) << errors[0];
  for (size_t process : {1, 2}) EXPECT_EQ(errors[process], "");
}

TEST(Generations, AProcessInReserveStepsIn) {
  const auto even = [](const std::vector<int>& left) {
    return std::vector<int>(left.begin(), left.end() - static_cast<std::ptrdiff_t>(left.size() % 2));
  };
  const auto errors = in_processes(4, [&](Launch& launch, int process) {
    const auto lose = [&](int lost) {
      EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
        const auto& processes = launch.generation().processes;
        if (process == lost)
          for (int other = 0; other < static_cast<int>(processes.size()); ++other)
            if (other != rank) world.disconnect(other);
        while (true) world.barrier();  // until it is noticed
      }),
                   PeerLost);
    };
    lose(1);
    if (process == 1) return;
    launch.rendezvous({.grace = kGrace, .training = even});
    EXPECT_EQ(launch.generation().reserve, (std::vector<int>{3}));
    EXPECT_EQ(launch.generation().trains(), process != 3);
    if (process == 3)
      EXPECT_TRUE(launch.wait_in_reserve());
    else
      lose(2);
    if (process == 2) return;
    launch.rendezvous({.grace = kGrace, .training = even});
    EXPECT_EQ(launch.generation().processes, (std::vector<int>{0, 3}));
    EXPECT_EQ(sum_of_ones(launch), 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Whoever waits in reserve does not take a fault for the end of the run.
TEST(Generations, AProcessInReserveHearsHowTheOthersEnded) {
  for (const bool sound : {true, false}) {
    const auto errors = in_processes(3, [&](Launch& launch, int process) {
      EXPECT_THROW(launch.run([](int, ProcessGroup&) { fail("all fail"); }), Error);
      launch.rendezvous({.training = [](const std::vector<int>& left) {
        return std::vector<int>(left.begin(), left.begin() + 2);
      }});
      if (process == 2) {
        EXPECT_FALSE(launch.wait_in_reserve());
      } else if (sound) {
        EXPECT_EQ(sum_of_ones(launch), 2);
      } else {
        EXPECT_THROW(launch.run([](int, ProcessGroup&) { fail("again"); }), Error);
      }
    });
    EXPECT_EQ(errors[2].find("ended after a fault") != std::string::npos, !sound) << errors[2];
  }
}

// The process that is lost is started again and waits; the others, which have met without it, take it in when
// they meet next.
TEST(Generations, ALostProcessComesBack) {
  for (const int lost : {2, 0}) {
    TempDir folder;
    std::atomic<int> met = 0, back = 0;  // of all rounds
    std::vector<std::thread> threads;
    for (int process = 0; process < 3; ++process)
      threads.emplace_back([&, process] {
        try {
          LaunchOptions options = options_of(folder, process, 3);
          auto launch = std::make_unique<Launch>(options);
          for (int round = 0; round < 2; ++round) {
            wait_for(back, 3 * round);  // nobody is lost while others still add up
            EXPECT_THROW(launch->run([&](int rank, ProcessGroup& world) {
              if (process == lost)
                for (int other = 0; other < 3; ++other)
                  if (other != rank) world.disconnect(other);
              while (true) world.barrier();  // until it is noticed
            }),
                         PeerLost);
            if (process == lost) {
              launch.reset();
              wait_for(met, 2 * (round + 1));
              options.place.rejoins = true;
              launch = std::make_unique<Launch>(options);
              EXPECT_FALSE(launch->generation().trains());
              ASSERT_TRUE(launch->wait_in_reserve());
            } else {
              launch->rendezvous({.grace = kGrace});
              EXPECT_EQ(sum_of_ones(*launch), 2);
              ++met;
              wait_until("the process that comes back", [&] { return launch->has_newcomer(); });
            }
            launch->rendezvous({.grace = kGrace});
            EXPECT_FALSE(launch->has_newcomer());
            EXPECT_EQ(launch->generation().number, 2U * static_cast<unsigned>(round + 1));
            EXPECT_EQ(launch->generation().first_rank, process);
            EXPECT_EQ(sum_of_ones(*launch), 3);
            ++back;
          }
        } catch (const std::exception& error) {
          ADD_FAILURE() << "process " << process << ": " << error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
}

// Whoever comes back too late hears how the run has ended.
TEST(Generations, AProcessThatComesBackHearsHowTheOthersEnded) {
  TempDir folder;
  std::atomic<int> back = 0;
  std::vector<std::thread> threads;
  for (int process = 0; process < 3; ++process)
    threads.emplace_back([&, process] {
      try {
        LaunchOptions options = options_of(folder, process, 3);
        auto launch = std::make_unique<Launch>(options);
        EXPECT_THROW(launch->run([&](int rank, ProcessGroup& world) {
          if (rank == 2)
            for (const int other : {0, 1}) world.disconnect(other);
          while (true) world.barrier();  // until it is noticed
        }),
                     PeerLost);
        if (process == 2) {
          launch.reset();
          options.place.rejoins = true;
          launch = std::make_unique<Launch>(options);
          ++back;
          EXPECT_FALSE(launch->wait_in_reserve());
        } else {
          launch->rendezvous({.grace = kGrace});
          wait_for(back, 1);
          EXPECT_EQ(sum_of_ones(*launch), 2);
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "process " << process << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// Of a world that falls apart one part goes on: the larger one, or the half with the lowest process.
TEST(Generations, OnePartOfABrokenNetworkGoesOn) {
  for (const int cut : {1, 2, 3}) {
    const auto errors = in_processes(4, [&](Launch& launch, int process) {
      EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
        world.barrier();
        if (rank < cut)
          for (int other = cut; other < 4; ++other) world.disconnect(other);
        while (true) world.barrier();  // until it is noticed
      }),
                   PeerLost);
      launch.rendezvous({.grace = kGrace});
      EXPECT_EQ(process < cut, cut >= 2);
      EXPECT_EQ(sum_of_ones(launch), cut >= 2 ? cut : 4 - cut);
    });
    for (int process = 0; process < 4; ++process) {
      const std::string& error = errors[static_cast<size_t>(process)];
      if ((process < cut) == (cut >= 2))
        EXPECT_EQ(error, "");
      else
        EXPECT_NE(error.find(" go on without "), std::string::npos) << error;
    }
  }
}

// Some wait from the start, and whoever steps in takes the rank of the one that is gone.
TEST(Generations, RanksFollowTheChoice) {
  const auto errors = in_processes(
      3,
      [](Launch& launch, int process) {
        EXPECT_EQ(launch.generation().trains(), process != 1);
        EXPECT_EQ(launch.generation().reserve, (std::vector<int>{1}));
        if (process == 1) {
          EXPECT_TRUE(launch.wait_in_reserve());
        } else {
          EXPECT_EQ(launch.generation().first_rank, process == 2 ? 0 : 1);
          EXPECT_THROW(launch.run([](int, ProcessGroup&) { fail("all fail"); }), Error);
        }
        launch.rendezvous({.training = [](const std::vector<int>&) { return std::vector<int>{0, 1, 2}; }});
        EXPECT_EQ(launch.generation().first_rank, process);
        EXPECT_EQ(sum_of_ones(launch), 3);
      },
      1,
      [](const std::vector<int>&) {
        return std::vector<int>{2, 0};
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Generations, TooFewCannotTrain) {
  const auto errors = in_processes(2, [](Launch& launch, int) {
    EXPECT_THROW(launch.run([](int, ProcessGroup&) { fail("all fail"); }), Error);
    launch.rendezvous({.training = [](const std::vector<int>&) { return std::vector<int>(); }});
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("cannot train this layout"), std::string::npos) << error;
}

TEST(Generations, EachRankHasItsOwnTimeout) {
  Launch launch({.ranks = 2, .timeout = 10min});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(launch.run([](int rank, ProcessGroup& world) {
    if (rank == 1) stay_away(world);
    world.set_timeout(100ms);
    world.barrier();
  }),
               CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min);
}

}  // namespace
}  // namespace megatron
