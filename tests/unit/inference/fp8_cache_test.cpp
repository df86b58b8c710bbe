#include <gtest/gtest.h>

#include "megatron/inference/engine.h"
#include "unit/inference/small_models.h"

// Keys and values in e4m3 beside what else an engine does with its cache: what is read from it is the same
// whoever wrote it, and when.
namespace megatron {
namespace {

using testing::Answer;
using testing::mixed_requests;
using testing::small_config;
using testing::SmallModel;
using testing::with_engine;

class Fp8CacheOfEveryKind : public ::testing::TestWithParam<const SmallModel*> {};

std::vector<Request> requests_that_repeat() {
  std::vector<Request> requests = mixed_requests(10);
  for (Request& request : requests) {
    request.max_tokens += 20;
    if (request.sampling.temperature > 0) request.sampling.temperature = 0.3;
    request.sampling.repetition_penalty = 0.8;
  }
  return requests;
}

// All requests, `rounds` times one behind the other; the answers of the last round.
std::vector<Answer> rounds(const Config& config, const EngineOptions& options, int rounds,
                           EngineStats& stats) {
  const std::vector<Request> requests = requests_that_repeat();
  std::vector<Answer> all;
  with_engine(config, DType::F32, options, [&](Engine& engine, RankContext&, Model&) {
    for (int round = 0; round < rounds; ++round) {
      all.assign(requests.size(), {});
      for (size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], all[i].listener());
      while (engine.step()) {
      }
    }
    stats = engine.stats();
    EXPECT_EQ(stats.used_blocks, 0);
  });
  return all;
}

int64_t bytes_of_blocks(const Config& config, int64_t count) {
  int64_t bytes = 0;
  with_engine(config, DType::F32, {.block_size = 4}, [&](Engine&, RankContext&, Model& model) {
    bytes = PagedCache::block_bytes(model.cache_shapes(), DType::F8E4M3, 4);
    for (int64_t depth = 0; depth < model.draft_depths(); ++depth)
      bytes += PagedCache::block_bytes(model.draft_shapes(depth), DType::F8E4M3, 4);
  });
  return count * bytes;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << "request " << i;
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << "request " << i;
    EXPECT_EQ(got[i].finish, expected[i].finish) << "request " << i;
  }
}

// A prefix that another request left in fp8 gives the bits of one that the request wrote itself, whether it
// was read in one piece or in several.
TEST_P(Fp8CacheOfEveryKind, SharedPrefixesChangeNothing) {
  const Config config = small_config(*GetParam());
  EngineStats stats;
  const std::vector<Answer> own =
      rounds(config, {.block_size = 4, .fp8_cache = true, .prefix_caching = false}, 1, stats);
  EXPECT_EQ(stats.prefix_hits, 0);
  const std::vector<Answer> shared = rounds(config, {.block_size = 4, .fp8_cache = true}, 2, stats);
  if (GetParam() != &testing::kLengths) {
    EXPECT_GT(stats.prefix_hits, 100);
  }
  expect_same(shared, own);
  expect_same(rounds(config, {.block_size = 4, .fp8_cache = true, .max_tokens = 7}, 2, stats), own);
}

// Drafts are verified against keys in fp8, and leave nothing behind where they are rejected; shared prefixes
// and blocks that were given up included.
TEST_P(Fp8CacheOfEveryKind, DraftsChangeNothing) {
  const Config config = small_config(*GetParam());
  EngineStats stats;
  const std::vector<Answer> plain =
      rounds(config, {.block_size = 4, .fp8_cache = true, .prefix_caching = false}, 1, stats);
  EngineOptions roomy{.block_size = 4, .fp8_cache = true, .speculative_tokens = 3}, tight = roomy;
  tight.max_tokens = 16;
  tight.cache_bytes = bytes_of_blocks(config, 30);
  for (const EngineOptions& options : {roomy, tight}) {
    expect_same(rounds(config, options, 2, stats), plain);
    EXPECT_GT(stats.accepted_tokens, 0);
    EXPECT_LT(stats.accepted_tokens, stats.drafted_tokens) << "some were rejected";
  }
  if (config.model.window_size.empty()) {
    EXPECT_GT(stats.evictions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Fp8CacheOfEveryKind,
                         ::testing::Values(&testing::kDense, &testing::kWindow, &testing::kLatent,
                                           &testing::kExperts, &testing::kLengths, &testing::kMtp),
                         [](const auto& info) {
                           std::string name = info.param->name;
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace megatron
