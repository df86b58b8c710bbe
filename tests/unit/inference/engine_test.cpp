#include "megatron/inference/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "megatron/models/model_sequences.h"
#include "megatron/transformer/layer_pattern.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::Answer;
using testing::answers;
using testing::mixed_requests;
using testing::small_config;
using testing::SmallModel;
using testing::with_engine;

class EngineOfEveryKind : public ::testing::TestWithParam<const SmallModel*> {};

// One by one, all at once, in small pieces and under memory pressure: the same tokens and log-probabilities,
// to the bit.
TEST_P(EngineOfEveryKind, ResultsDoNotDependOnTheBatch) {
  const Config config = small_config(*GetParam());
  const std::vector<Request> requests = mixed_requests(12);
  std::vector<Answer> alone;
  for (const Request& request : requests)
    alone.push_back(answers(config, DType::F32, {.block_size = 4}, {request})[0]);
  std::set<int64_t> seen;
  for (const Answer& answer : alone) seen.insert(answer.ids.begin(), answer.ids.end());
  EXPECT_GT(seen.size(), 8U) << "texts that say something";

  const int64_t block = [&] {
    int64_t bytes = 0;
    with_engine(config, DType::F32, {.block_size = 4}, [&](Engine&, RankContext&, Model& model) {
      bytes = PagedCache::block_bytes(model.cache_shapes(), DType::F32, 4);
    });
    return bytes;
  }();
  const EngineOptions together{.block_size = 4}, pieces{.block_size = 4, .max_requests = 5, .max_tokens = 7};
  EngineOptions tight{.block_size = 4, .max_tokens = 16};
  tight.cache_bytes = 24 * block + 8 * (int64_t{1} << 13);
  const EngineOptions plain{.block_size = 8, .chunked_prefill = false, .prefix_caching = false};
  for (const EngineOptions& options : {together, pieces, tight, plain}) {
    SCOPED_TRACE(fmt::format("{} tokens a step, cache of {} bytes", options.max_tokens, options.cache_bytes));
    const std::vector<Answer> mixed = answers(config, DType::F32, options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(mixed[i].ids, alone[i].ids) << "request " << i;
      EXPECT_EQ(mixed[i].logprobs, alone[i].logprobs) << "request " << i;
      EXPECT_EQ(mixed[i].finish, FinishReason::length);
    }
  }
}

TEST_P(EngineOfEveryKind, RanksShareTheWork) {
  const std::vector<Request> requests = mixed_requests(6);
  const auto one = answers(small_config(*GetParam()), DType::F64, {.block_size = 4}, requests);
  for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}}) {
    const auto shared =
        answers(small_config(*GetParam(), tp, pp), DType::F64, {.block_size = 4}, requests, tp * pp);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(shared[i].ids, one[i].ids) << "tp " << tp << " pp " << pp << " request " << i;
  }
}

// Log-probabilities of new tokens and of the prompt are those of the logits of the whole text.
TEST_P(EngineOfEveryKind, LogprobsAreThoseOfLogits) {
  Request request = mixed_requests(1)[0];
  request.prompt_logprobs = 3;
  Config config = small_config(*GetParam());
  config.model.init_method_std = 0.1;
  with_engine(config, DType::F32, {.block_size = 4, .max_tokens = 6},
              [&](Engine& engine, RankContext& ctx, Model& model) {
                Answer answer;
                engine.submit(request, answer.listener());
                while (engine.step()) {
                }
                std::vector<int64_t> text = request.prompt;
                text.insert(text.end(), answer.ids.begin(), answer.ids.end());
                ASSERT_EQ(answer.prompt.size() + 1, request.prompt.size());
                // Where frequencies hang on the length of a text, each token was made by a shorter one.
                const bool lengths = rope_depends_on_length(model.config());
                const auto check = [&](const std::vector<float>& logits, int64_t at,
                                       const TokenChoice& choice) {
                  const float* row = logits.data() + (at - 1) * 50;
                  double sum = 0;
                  for (int i = 0; i < 50; ++i) sum += std::exp(static_cast<double>(row[i]));
                  EXPECT_EQ(choice.id, text[static_cast<size_t>(at)]);
                  EXPECT_NEAR(choice.logprob, row[choice.id] - std::log(sum), 1e-5) << "token " << at;
                  ASSERT_GE(choice.top.size(), 2U);
                  EXPECT_GE(choice.top[0].second, choice.top[1].second);
                  EXPECT_NEAR(choice.top[0].second, row[choice.top[0].first] - std::log(sum), 1e-5);
                };
                const auto length = std::ssize(request.prompt);
                const auto logits = ctx.to_vector<float>(
                    model.logits(ctx, {.tokens = lengths ? std::span(request.prompt) : std::span(text)}));
                for (int64_t at = 1; at < length; ++at)
                  check(logits, at, answer.prompt[static_cast<size_t>(at - 1)]);
                if (!lengths)
                  for (int64_t at = length; at < std::ssize(text); ++at)
                    check(logits, at, answer.tokens[static_cast<size_t>(at - length)]);
              });
}

// Keys and values in e4m3: answers do not depend on the batch either, and are near those of a wide cache.
TEST_P(EngineOfEveryKind, KeysInFp8) {
  const Config config = small_config(*GetParam());
  const std::vector<Request> requests = mixed_requests(8);
  const EngineOptions small{.block_size = 4, .fp8_cache = true};
  if (carries_states(config.model)) {
    EXPECT_THROW(answers(config, DType::F32, small, requests), ConfigError);
    return;
  }
  const std::vector<Answer> wide = answers(config, DType::F32, {.block_size = 4}, requests),
                            together = answers(config, DType::F32, small, requests);
  double error = 0, count = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer alone =
        answers(config, DType::F32, {.block_size = 4, .fp8_cache = true, .max_tokens = 7}, {requests[i]})[0];
    EXPECT_EQ(alone.ids, together[i].ids) << "request " << i;
    EXPECT_EQ(alone.logprobs, together[i].logprobs) << "request " << i;
    // The first token is compared where it is the same: behind it texts may differ.
    if (together[i].ids[0] != wide[i].ids[0]) continue;
    error += std::pow(together[i].logprobs[0] - wide[i].logprobs[0], 2);
    count += 1;
  }
  EXPECT_GT(error, 0) << "something was rounded";
  EXPECT_GE(count, 6) << "of 8 first tokens";
  EXPECT_LT(std::sqrt(error / count), 0.15);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EngineOfEveryKind,
                         ::testing::Values(&testing::kDense, &testing::kWindow, &testing::kHybrid,
                                           &testing::kLatent, &testing::kExperts, &testing::kLengths),
                         [](const auto& info) {
                           std::string name = info.param->name;
                           std::erase(name, ' ');
                           return name;
                         });

// Guessed tokens that are verified: the same tokens and log-probabilities to the bit, drawn ones too, in
// fewer steps; under memory pressure, constraints and end tokens as well.
class SpeculationOfEveryKind : public ::testing::TestWithParam<const SmallModel*> {};

TEST_P(SpeculationOfEveryKind, ChangesNothing) {
  const Config config = small_config(*GetParam());
  std::vector<Request> requests = mixed_requests(10);
  for (Request& request : requests) {
    request.max_tokens += 24;
    if (request.sampling.temperature > 0) request.sampling.temperature = 0.3;
    request.sampling.repetition_penalty = 0.8;  // texts that repeat themselves
  }
  requests[2].end_tokens = {7, 11, 13};
  const std::vector<Answer> plain = answers(config, DType::F32, {.block_size = 4}, requests);
  EngineOptions roomy{.block_size = 4, .speculative_tokens = 4}, tight = roomy, few = roomy;
  tight.max_tokens = 16;
  tight.max_requests = 4;
  few.max_tokens = 7;
  with_engine(config, DType::F32, {.block_size = 4}, [&](Engine&, RankContext&, Model& model) {
    int64_t block = PagedCache::block_bytes(model.cache_shapes(), DType::F32, 4);
    for (int64_t depth = 0; depth < model.draft_depths(); ++depth)
      block += PagedCache::block_bytes(model.draft_shapes(depth), DType::F32, 4);
    tight.cache_bytes = 30 * block;
  });
  for (const EngineOptions& options : {roomy, tight, few}) {
    std::vector<Answer> guessed(requests.size());
    with_engine(config, DType::F32, options, [&](Engine& engine, RankContext&, Model&) {
      for (size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], guessed[i].listener());
      while (engine.step()) {
      }
      const EngineStats stats = engine.stats();
      // Layers that were not trained guess less well than what was said before.
      EXPECT_GT(stats.accepted_tokens, config.model.mtp_num_layers > 0 ? 0 : 20);
      EXPECT_GE(stats.drafted_tokens, stats.accepted_tokens);
      EXPECT_EQ(stats.used_blocks, 0);
    });
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(guessed[i].ids, plain[i].ids) << "request " << i;
      EXPECT_EQ(guessed[i].logprobs, plain[i].logprobs) << "request " << i;
      EXPECT_EQ(guessed[i].finish, plain[i].finish);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SpeculationOfEveryKind,
                         ::testing::Values(&testing::kDense, &testing::kWindow, &testing::kLatent,
                                           &testing::kExperts, &testing::kLengths, &testing::kMtp,
                                           &testing::kRepeatedMtp),
                         [](const auto& info) {
                           std::string name = info.param->name;
                           std::erase(name, ' ');
                           return name;
                         });

// MTP layers under other layouts guess the same, so that as many tokens are accepted.
TEST(Engine, MtpLayersGuessAlikeUnderEveryLayout) {
  std::vector<Request> requests = mixed_requests(6);
  for (const SmallModel* kind : {&testing::kMtp, &testing::kRepeatedMtp}) {
    const auto run = [&](int tp, int pp, std::vector<Answer>& all) {
      EngineStats stats;
      with_engine(
          small_config(*kind, tp, pp), DType::F64, {.block_size = 4, .speculative_tokens = 3},
          [&](Engine& engine, RankContext&, Model&) {
            for (size_t i = 0; i < requests.size(); ++i) engine.submit(requests[i], all[i].listener());
            while (engine.step()) {
            }
            stats = engine.stats();
          },
          tp * pp);
      return stats;
    };
    std::vector<Answer> one(requests.size());
    const EngineStats alone = run(1, 1, one);
    EXPECT_GT(alone.accepted_tokens, 0);
    for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}}) {
      std::vector<Answer> all(requests.size());
      const EngineStats stats = run(tp, pp, all);
      EXPECT_EQ(stats.drafted_tokens, alone.drafted_tokens);
      EXPECT_EQ(stats.accepted_tokens, alone.accepted_tokens);
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(all[i].ids, one[i].ids) << i;
    }
  }
}

TEST(Engine, StatesCannotGoBackToBeforeAGuess) {
  EXPECT_THROW(answers(small_config(testing::kHybrid), DType::F32, {.speculative_tokens = 2}, {}),
               ConfigError);
}

// Sampled tokens have the probabilities of the logits: chi-square over many seeds.
TEST(Engine, SampledTokensFollowTheProbabilities) {
  const Config config = small_config(testing::kDense);
  Request request{.prompt = {3, 1, 4, 1, 5}, .sampling = {.temperature = 2.5}, .max_tokens = 1};
  request.top_logprobs = 50;
  constexpr int draws = 4000;
  std::vector<int> counts(50, 0);
  std::vector<double> probabilities(50, 0);
  with_engine(config, DType::F32, {}, [&](Engine& engine, RankContext&, Model&) {
    std::vector<Answer> all(draws);
    for (int i = 0; i < draws; ++i) {
      request.sampling.seed = static_cast<uint64_t>(i);
      engine.submit(request, all[static_cast<size_t>(i)].listener());
    }
    while (engine.step()) {
    }
    for (const Answer& answer : all) ++counts[static_cast<size_t>(answer.ids.at(0))];
    double sum = 0;
    for (const auto& [id, logprob] : all[0].tokens[0].top)
      sum += probabilities[static_cast<size_t>(id)] = std::exp(static_cast<double>(logprob) / 2.5);
    for (double& p : probabilities) p /= sum;
  });
  double statistic = 0;
  int cells = 0;
  double rest_expected = 0, rest_seen = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected < 8) {
      rest_expected += expected;
      rest_seen += counts[i];
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rest_expected > 0)
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
  ASSERT_GT(cells, 8);
  // The mean is the number of cells, the deviation √(2 · cells): four of them are never exceeded by chance.
  EXPECT_LT(statistic, cells + 4 * std::sqrt(2.0 * cells));
}

TEST(Engine, PromptsThatBeginAlikeShareBlocks) {
  const Config config = small_config(testing::kDense);
  with_engine(config, DType::F32, {.block_size = 4}, [&](Engine& engine, RankContext&, Model&) {
    Request request{.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, .max_tokens = 3};
    Answer first, second, third;
    engine.submit(request, first.listener());
    while (engine.step()) {
    }
    engine.submit(request, second.listener());
    request.prompt[5] = 0;  // the first block alone is as before
    engine.submit(request, third.listener());
    while (engine.step()) {
    }
    EXPECT_EQ(first.cached_tokens, 0);
    EXPECT_EQ(second.cached_tokens, 8);
    EXPECT_EQ(third.cached_tokens, 4);
    EXPECT_EQ(second.ids, first.ids);
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.prefix_queries, 30);
    EXPECT_EQ(stats.prefix_hits, 12);
    EXPECT_EQ(stats.prompt_tokens, 18);
    EXPECT_EQ(stats.generated_tokens, 9);
    EXPECT_EQ(stats.used_blocks, 0);
    EXPECT_GT(stats.cached_blocks, 0);
  });
}

// GEMMs in bf16 are chosen by the number of rows, unless a step is batch-invariant; in fp32 every step is.
TEST(Engine, StepsAreBatchInvariantWhereAsked) {
  for (const auto& [dtype, asked] : {std::pair{DType::BF16, false}, {DType::BF16, true}, {DType::F32, false}})
    with_engine(small_config(testing::kDense), dtype, {.batch_invariant = asked},
                [&, dtype = dtype, asked = asked](Engine& engine, RankContext& ctx, Model&) {
                  int steps = 0;
                  engine.submit({.prompt = {1, 2}, .max_tokens = 2}, [&](const RequestUpdate&) {
                    EXPECT_EQ(ctx.batch_invariant, asked || dtype == DType::F32);
                    ++steps;
                  });
                  while (engine.step()) {
                  }
                  EXPECT_EQ(steps, 2);
                  EXPECT_FALSE(ctx.batch_invariant);
                });
}

// What states may take bounds the requests that run; keys and values have the rest.
TEST(Engine, StatesHaveTheirShareOfTheCache) {
  const Config config = small_config(testing::kHybrid);
  int64_t slot = 0, block = 0;
  with_engine(config, DType::F32, {.block_size = 4}, [&](Engine&, RankContext&, Model& model) {
    slot = PagedCache::slot_bytes(model.cache_shapes(), DType::F32);
    block = PagedCache::block_bytes(model.cache_shapes(), DType::F32, 4);
  });
  for (const int64_t kept : {1, 3}) {
    const int64_t bytes = 8 * slot;
    EngineOptions options{.block_size = 4, .cache_bytes = bytes, .max_length = 8};
    options.state_ratio = (static_cast<double>(kept) + 0.5) / 8;
    with_engine(config, DType::F32, options, [&](Engine& engine, RankContext&, Model&) {
      const int64_t left = bytes - static_cast<int64_t>(static_cast<double>(bytes) * *options.state_ratio);
      EXPECT_EQ(engine.stats().total_blocks, std::min(kept * 2, left / block));
      for (int i = 0; i < 4; ++i) engine.submit({.prompt = {1, 2}, .max_tokens = 3}, [](const auto&) {});
      engine.step();
      EXPECT_EQ(engine.stats().running, kept);
    });
  }
}

TEST(Engine, UrgentRequestsGoFirst) {
  with_engine(small_config(testing::kDense), DType::F32, {.max_requests = 1},
              [&](Engine& engine, RankContext&, Model&) {
                std::vector<int> order;
                for (int priority : {2, 0, 1})
                  engine.submit({.prompt = {1}, .max_tokens = 2, .priority = priority},
                                [&order, priority](const RequestUpdate& update) {
                                  if (update.finish) order.push_back(priority);
                                });
                while (engine.step()) {
                }
                EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
              });
}

TEST(Engine, EndsWhereItShould) {
  with_engine(
      small_config(testing::kDense), DType::F32, {.max_length = 12},
      [&](Engine& engine, RankContext&, Model&) {
        Request request{.prompt = {3, 1, 4, 1, 5}, .max_tokens = 5};
        Answer plain, ended, later, full, nothing;
        engine.submit(request, plain.listener());
        while (engine.step()) {
        }
        ASSERT_EQ(plain.ids.size(), 5U);
        EXPECT_EQ(plain.finish, FinishReason::length);
        request.end_tokens = {plain.ids[0]};
        engine.submit(request, ended.listener());
        request.min_tokens = 2;
        engine.submit(request, later.listener());
        engine.submit({.prompt = {1, 2, 3}, .max_tokens = 100}, full.listener());
        engine.submit({.prompt = {1, 2, 3}, .max_tokens = 0, .prompt_logprobs = 0}, nothing.listener());
        while (engine.step()) {
        }
        EXPECT_EQ(ended.ids, std::vector<int64_t>{plain.ids[0]});
        EXPECT_EQ(ended.finish, FinishReason::end_token);
        ASSERT_GE(later.ids.size(), 2U);
        EXPECT_NE(later.ids[0], plain.ids[0]);
        EXPECT_EQ(full.ids.size(), 10U) << "twelve tokens are read, one more is written";
        EXPECT_EQ(full.finish, FinishReason::length);
        EXPECT_EQ(nothing.ids.size(), 0U);
        EXPECT_EQ(nothing.prompt.size(), 2U);
        EXPECT_EQ(nothing.finish, FinishReason::length);
      });
}

TEST(Engine, StopsBehindASequenceOfTokens) {
  with_engine(small_config(testing::kDense), DType::F32, {}, [&](Engine& engine, RankContext&, Model&) {
    Request request{.prompt = {3, 1, 4, 1, 5}, .sampling = {.temperature = 1}, .max_tokens = 8};
    Answer plain, stopped, whole;
    engine.submit(request, plain.listener());
    while (engine.step()) {
    }
    ASSERT_EQ(plain.ids.size(), 8U);
    // One that never comes, and one that is complete with the fourth token.
    request.stop_sequences = {{plain.ids[2], plain.ids[2], plain.ids[2]}, {plain.ids[2], plain.ids[3]}};
    int64_t stop_tokens = 0;
    const RequestListener listener = stopped.listener();
    engine.submit(request, [&](const RequestUpdate& update) {
      listener(update);
      stop_tokens = update.stop_tokens;
    });
    request.stop_sequences = {
        {request.prompt[4], plain.ids[0]}};  // it begins in the prompt, so it does not count
    engine.submit(request, whole.listener());
    while (engine.step()) {
    }
    EXPECT_EQ(stopped.ids, std::vector<int64_t>(plain.ids.begin(), plain.ids.begin() + 4));
    EXPECT_EQ(stopped.finish, FinishReason::end_token);
    EXPECT_EQ(stop_tokens, 2);
    EXPECT_EQ(whole.ids, plain.ids);
  });
}

TEST(Engine, RefusesWhatCannotRun) {
  with_engine(small_config(testing::kDense), DType::F32, {.max_length = 12},
              [&](Engine& engine, RankContext&, Model&) {
                EXPECT_THROW(engine.submit({.prompt = {}}, {}), ConfigError);
                EXPECT_THROW(engine.submit({.prompt = {50}}, {}), ConfigError);
                EXPECT_THROW(engine.submit({.prompt = {-1}}, {}), ConfigError);
                EXPECT_THROW(engine.submit({.prompt = std::vector<int64_t>(13, 1)}, {}), ConfigError);
              });
  EXPECT_THROW(answers(small_config(testing::kDense), DType::F32, {.cache_bytes = 100}, {}), ConfigError);
}

// Tokens of even numbers alone, and the end after three of them.
struct EvenState : ConstraintState {
  int64_t count = 0;
  void allowed(std::span<uint32_t> bits) const override {
    std::ranges::fill(bits, count < 3 ? 0x55555555u : 0u);
    if (count == 3) bits[0] |= 1u << 1;
  }
  void advance(int64_t) override { ++count; }
};
struct Even : Constraint {
  std::unique_ptr<ConstraintState> start() const override { return std::make_unique<EvenState>(); }
};

TEST(Engine, FollowsConstraints) {
  Request request{.prompt = {3, 1, 4, 1, 5}, .max_tokens = 9, .end_tokens = {1}};
  request.constraint = std::make_shared<Even>();
  const Answer answer = answers(small_config(testing::kDense), DType::F32, {}, {request})[0];
  ASSERT_EQ(answer.ids.size(), 4U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answer.ids[i] % 2, 0);
  EXPECT_EQ(answer.ids[3], 1);
}

}  // namespace
}  // namespace megatron
