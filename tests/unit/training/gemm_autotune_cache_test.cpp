// The cache of tuned algorithms, without GEMMs: ranks agree on texts and keep them in files.
#include "megatron/training/step/gemm_autotune_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "megatron/base/text_file.h"
#include "megatron/comm/run_ranks.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// What each of several ranks ends with.
std::vector<SharedAlgos> share(const std::vector<std::string>& folders,
                               const std::vector<std::string>& found) {
  std::vector<SharedAlgos> results(found.size());
  run_ranks(static_cast<int>(found.size()), [&](int rank, const ProcessGroup& world) {
    const auto at = static_cast<size_t>(rank);
    results[at] = share_tuned_algos(world, folders[at % folders.size()], found[at]);
  });
  return results;
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(GemmAutotuneCache, RanksOfOneKindChooseAlike) {
  TempDir folder;
  const auto results = share({folder.path()}, {"gpu a\n", "gpu a\nx 1\ny 1\n", "gpu a\ny 2\nz 2\n"});
  for (const SharedAlgos& result : results) EXPECT_EQ(result.algos, "gpu a\nx 1\ny 1\nz 2\n");
  EXPECT_TRUE(results[0].problem.empty());
  EXPECT_EQ(read_text_file(results[0].path), results[0].algos);
  EXPECT_TRUE(results[1].path.empty());
  EXPECT_EQ(files_in(folder.path()), 1u);
  // A later run begins with them, however many ranks it has, and chooses nothing else.
  for (const SharedAlgos& result : share({folder.path()}, {"gpu a", "gpu a"}))
    EXPECT_EQ(result.algos, "gpu a\nx 1\ny 1\nz 2\n");
  EXPECT_EQ(share({folder.path()}, {"gpu a\nx 7\nw 7\n"})[0].algos, "gpu a\nx 1\ny 1\nz 2\nw 7\n");
}

TEST(GemmAutotuneCache, EveryKindHasItsFile) {
  TempDir folder;
  auto results = share({folder.path()}, {"gpu a\nx 1\n", "", "gpu b\nx 2\n", "gpu a\ny 3\n"});
  EXPECT_EQ(results[0].algos, "gpu a\nx 1\ny 3\n");
  EXPECT_EQ(results[1].algos, "");  // a CPU
  EXPECT_EQ(results[2].algos, "gpu b\nx 2\n");
  EXPECT_EQ(results[3].algos, results[0].algos);
  EXPECT_NE(results[0].path, results[2].path);
  EXPECT_EQ(files_in(folder.path()), 2u);
  EXPECT_EQ(share({folder.path()}, {"gpu b"})[0].algos, "gpu b\nx 2\n");
  EXPECT_EQ(share({folder.path()}, {"gpu a"})[0].algos, "gpu a\nx 1\ny 3\n");
}

TEST(GemmAutotuneCache, TheFirstRankDecidesWhetherAnyAreMade) {
  TempDir folder;
  for (const SharedAlgos& result : share({"", folder.path()}, {"gpu a\nx 1\n", "gpu a\nx 1\n"}))
    EXPECT_EQ(result.algos, "");
  EXPECT_EQ(files_in(folder.path()), 0u);
  for (const SharedAlgos& result : share({folder.path(), ""}, {"gpu a", "gpu a"}))
    EXPECT_EQ(result.algos, "gpu a\n");  // none yet, but they may be
}

TEST(GemmAutotuneCache, SpoiltFilesAreMended) {
  TempDir folder;
  const std::string path = share({folder.path()}, {"gpu a\nx 1\n"})[0].path;
  std::ofstream(path) << "gpu a\nx 1\ny";  // cut off
  EXPECT_EQ(share({folder.path()}, {"gpu a"})[0].algos, "gpu a\nx 1\n");
  std::ofstream(path) << "something else\nx 1\n";
  EXPECT_EQ(share({folder.path()}, {"gpu a\ny 2\n"})[0].algos, "gpu a\ny 2\n");
  EXPECT_EQ(read_text_file(path), "gpu a\ny 2\n");
}

TEST(GemmAutotuneCache, WhereNothingCanBeKeptTheyServeAllTheSame) {
  TempDir folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "not a folder";
  for (const SharedAlgos& result : share({file}, {"gpu a\nx 1\n", "gpu a"}))
    EXPECT_EQ(result.algos, "gpu a\nx 1\n");
  EXPECT_FALSE(share({file}, {"gpu a\nx 1\n"})[0].problem.empty());
}

TEST(GemmAutotuneCache, ACpuHasNone) {
  TempDir folder;
  run_ranks(2, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    GemmAutotuneCache autotune(ctx, world, folder.path());
    EXPECT_EQ(autotune.news(), "");
    autotune.finish_first_step();
    EXPECT_EQ(autotune.news(), "");
  });
  EXPECT_EQ(files_in(folder.path()), 0u);
}

}  // namespace
}  // namespace megatron::testing
