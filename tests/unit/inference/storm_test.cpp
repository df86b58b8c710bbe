#include <gtest/gtest.h>

#include <thread>

#include "megatron/transformer/layer_pattern.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::Answer;
using testing::small_config;
using testing::SmallModel;
using testing::with_engine;

// Requests come, are cancelled and evicted at random from a cache that is too small for them: none is lost,
// those that end have the tokens that they have alone, and every block comes back.
void storm(const SmallModel& kind, PrefixEviction eviction) {
  const Config config = small_config(kind);
  std::vector<Request> requests = testing::mixed_requests(16);
  for (Request& request : requests) request.max_tokens += 20;  // so that blocks run out on the way
  std::vector<Answer> alone;
  for (const Request& request : requests)
    alone.push_back(testing::answers(config, DType::F32, {.block_size = 4}, {request})[0]);
  EngineOptions options{.block_size = 4, .max_tokens = 16, .eviction = eviction};
  with_engine(config, DType::F32, options, [&](Engine&, RankContext&, Model& model) {
    const int64_t slot = PagedCache::slot_bytes(model.cache_shapes(), DType::F32);
    options.cache_bytes =
        slot > 0 ? 24 * slot : 30 * PagedCache::block_bytes(model.cache_shapes(), DType::F32, 4);
  });
  if (carries_states(config.model)) options.max_requests = 12;
  with_engine(config, DType::F32, options, [&](Engine& engine, RankContext&, Model&) {
    const EngineStats start = engine.stats();
    std::mt19937 random(3);
    constexpr size_t count = 120;
    std::vector<Answer> all(count);
    std::vector<RequestId> ids;
    while (ids.size() < count || engine.step()) {
      for (uint32_t n = random() % 4; n > 0 && ids.size() < count; --n) {
        Request request = requests[ids.size() % requests.size()];
        request.priority = static_cast<int>(random() % 2);
        ids.push_back(engine.submit(request, all[ids.size()].listener()));
      }
      if (random() % 3 == 0 && !ids.empty()) engine.cancel(ids[random() % ids.size()]);
      engine.step();
    }
    size_t whole = 0;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(all[i].finish.has_value()) << "request " << i << " was lost";
      const std::vector<int64_t>& expected = alone[i % alone.size()].ids;
      if (*all[i].finish == FinishReason::length) {
        ++whole;
        EXPECT_EQ(all[i].ids, expected) << "request " << i;
      } else {
        EXPECT_EQ(*all[i].finish, FinishReason::cancelled);
        ASSERT_LE(all[i].ids.size(), expected.size());
        EXPECT_TRUE(std::equal(all[i].ids.begin(), all[i].ids.end(), expected.begin())) << "request " << i;
      }
    }
    EXPECT_GT(whole, 20U);
    const EngineStats end = engine.stats();
    if (config.model.window_size.empty()) {  // a window needs few blocks, however long the text
      EXPECT_GT(end.evictions, 0) << "the cache was large enough for all";
    }
    EXPECT_EQ(end.used_blocks, start.used_blocks);
    EXPECT_EQ(end.running + end.waiting, 0);
    if (eviction == PrefixEviction::ref_zero) {
      EXPECT_EQ(end.cached_blocks, 0);
    }
  });
}

TEST(EngineStorm, OfDenseModels) {
  storm(testing::kDense, PrefixEviction::lru);
  storm(testing::kDense, PrefixEviction::ref_zero);
}
TEST(EngineStorm, OfWindows) { storm(testing::kWindow, PrefixEviction::lru); }
TEST(EngineStorm, OfHybrids) { storm(testing::kHybrid, PrefixEviction::lru); }

// Threads submit and cancel while another steps.
TEST(EngineStorm, OfThreads) {
  with_engine(small_config(testing::kDense), DType::F32, {.block_size = 4},
              [&](Engine& engine, RankContext&, Model&) {
                const std::vector<Request> requests = testing::mixed_requests(30);
                std::vector<Answer> all(requests.size());
                std::vector<std::thread> clients;
                for (size_t c = 0; c < 3; ++c)
                  clients.emplace_back([&, c] {
                    for (size_t i = c; i < requests.size(); i += 3) {
                      const RequestId id = engine.submit(requests[i], all[i].listener());
                      if (i % 5 == 0) engine.cancel(id);
                      engine.stats();
                    }
                    if (c == 0) engine.stats();
                  });
                std::thread last([&] {
                  for (std::thread& client : clients) client.join();
                  while (engine.stats().running + engine.stats().waiting > 0)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  engine.stop();
                });
                engine.run();
                last.join();
                for (const Answer& answer : all) EXPECT_TRUE(answer.finish.has_value());
                EXPECT_EQ(engine.stats().used_blocks, 0);
              });
}

}  // namespace
}  // namespace megatron
