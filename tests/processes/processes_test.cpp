#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "processes/process_parity.h"
#include "unit/comm/exercise.h"

// Runs in every process of a launch: by mpirun, by torchrun's variables, or alone with ranks as threads.
// MEGATRON_TEST_RANKS says how many ranks each process has; 4 in all.
namespace megatron::testing {
namespace {

Launch* launch = nullptr;  // made by main: MPI begins once per process

TEST(Processes, ReturnTheBitsOfThreads) {
  const size_t size = static_cast<size_t>(launch->world_size());
  std::vector<std::vector<uint8_t>> expected(size), results(size);
  run_ranks(launch->world_size(), [&](int rank, ProcessGroup& world) {
    expected[static_cast<size_t>(rank)] = Exercise(world).run();
  });
  launch->run(
      [&](int rank, ProcessGroup& world) { results[static_cast<size_t>(rank)] = Exercise(world).run(); });
  for (size_t rank = 0; rank < size; ++rank)
    EXPECT_TRUE(results[rank].empty() || results[rank] == expected[rank]) << "rank " << rank;
}

const Layout kLayouts[] = {
    {.name = "tp2_sp_pp2", .tp = 2, .pp = 2, .sp = true},
    {.name = "pp2_vpp2_dp2", .pp = 2, .dp = 2, .vpp = 2},
    {.name = "tp2_dp2", .tp = 2, .dp = 2},
    {.name = "dp4", .dp = 4},
};

constexpr int kFewSteps = 3;

void check(const Config& config, std::span<const Layout> layouts) {
  if (launch->world_size() != 4) GTEST_SKIP() << "made for 4 ranks";
  auto batches = batches_for(config, kFewSteps);
  const Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    check_processes(*launch, one, apply(config, layout), sizes_of(layout), batches);
  }
}

TEST(ProcessParity, GroupedQueryTiedRope) { check(small_gpt(), kLayouts); }
TEST(ProcessParity, Dropout) { check(with_dropout(), {kLayouts, 1}); }

// Every setting that fits on four ranks; with MEGATRON_TEST_STRENGTH=2 every pair of them.
TEST(ProcessParity, CoveringLayouts) {
  if (launch->world_size() != 4) GTEST_SKIP() << "made for 4 ranks";
  const char* given = std::getenv("MEGATRON_TEST_STRENGTH");
  const size_t strength = given ? static_cast<size_t>(std::atoi(given)) : 1;
  const CoveringDesign design = layout_design(4);
  const std::vector<DesignRow> rows = design.rows(strength);
  if (launch->is_first()) expect_covered(design, rows, strength);
  References references(kFewSteps);
  for (const DesignRow& row : rows) {
    SCOPED_TRACE(design.text(row));
    const DesignCase c = design_case(row);
    check_processes(*launch, references.of(c), c.config, c.sizes, references.batches(c));
  }
}

// A world ends with its first fault, so each of these has a launch of its own.
void expect_end(const RankFunction& fn, std::initializer_list<const char*> parts) {
  const auto begin = std::chrono::steady_clock::now();
  std::string told;
  try {
    launch->run(fn);
  } catch (const std::exception& error) {
    told = error.what();
  }
  for (const char* part : parts) EXPECT_NE(told.find(part), std::string::npos) << part << " in: " << told;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(45));
}

TEST(ProcessFault, DISABLED_ARankThatThrows) {
  expect_end(
      [](int rank, ProcessGroup& world) {
        if (rank == world.size() - 1) fail("disk full");
        std::vector<float> values(1 << 20);
        world.all_reduce(Tensor::wrap(values.data(), {1 << 20}, DType::F32)).wait();
      },
      {"disk full"});
}

TEST(ProcessFault, DISABLED_ARankThatDoesNotCome) {
  expect_end(
      [](int rank, ProcessGroup& world) {
        const ProcessGroup all = world.split(0, 0, "dp");
        if (rank == 1)
          while (true) {  // until the others have stopped the world
            world.require_running();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        world.set_timeout(std::chrono::seconds(2));
        all.barrier();
      },
      {"barrier #0 on group dp (ranks 0 1 2 3) did not end within 2.0 s: missing ranks 1",
       "rank 1 did not come; its last call here: nothing", "split", "processes_test.cpp:"});
}

TEST(ProcessFault, DISABLED_RanksThatDisagree) {
  expect_end(
      [](int rank, ProcessGroup& world) {
        std::vector<float> values(8), all(32);
        if (rank == 2)
          world
              .all_gather(Tensor::wrap(values.data(), {8}, DType::F32),
                          Tensor::wrap(all.data(), {32}, DType::F32))
              .wait();
        else
          world.all_reduce(Tensor::wrap(values.data(), {8}, DType::F32)).wait();
      },
      {"comm mismatch on group world (ranks 0 1 2 3): operation #0", "all_gather fp32[8]",
       "all_reduce fp32[8] sum", "processes_test.cpp:"});
}

}  // namespace
}  // namespace megatron::testing

int main(int argc, char** argv) {
  using namespace megatron;
  ::testing::InitGoogleTest(&argc, argv);
  try {
    const char* ranks = std::getenv("MEGATRON_TEST_RANKS");
    Launch launch({.ranks = ranks ? std::atoi(ranks) : 1,
                   .timeout = std::chrono::minutes(2),
                   .place = find_place([](const char* name) { return std::getenv(name); })});
    if (launch.is_first()) fmt::print("{}\n", launch.how());
    megatron::testing::launch = &launch;
    return RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
