// The corpora that libFuzzer left, and every input that once failed: each reader still ends well.
#include <gtest/gtest.h>

#include <chrono>

#include "fuzz/targets/targets.h"
#include "support/count_allocations.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

class FuzzTargets : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzTargets, EndWellOnTheCorpus) {
  const TempDir folder;
  const auto corpus =
      std::filesystem::path(MEGATRON_BINARY_DIR) / "fuzz_corpus" / std::string(GetParam().name);
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    const std::string input = read_text(entry.path().string());
    const auto begin = std::chrono::steady_clock::now();
    const size_t before = allocated;
    try {
      feed(GetParam(), input, folder.path());
    } catch (const std::exception& error) {
      FAIL() << entry.path() << ": " << error.what();
    }
    const size_t each = GetParam().bytes_per_byte, bound = each * input.size() + (size_t{1} << 20);
    if (each > 0) {
      EXPECT_LT(allocated - before, bound) << entry.path();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << entry.path();
    ++inputs;
  }
  EXPECT_GE(inputs, 5) << corpus;
}

INSTANTIATE_TEST_SUITE_P(Corpora, FuzzTargets,
                         ::testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace megatron::testing
