#include "megatron/transformer/hidden_state_mixing.h"

#include <gtest/gtest.h>

#include <set>

#include "support/gradcheck.h"

namespace megatron {
namespace {

constexpr int64_t kRows = 3, kLength = 40, kTokens = kRows * kLength, kHidden = 2;

SeqInfo sequences(RankContext& ctx) {
  SeqInfo seq{.batch = kRows, .length = kLength, .row_length = kLength};
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < kTokens; ++i) positions.push_back(i % kLength);
  seq.positions = ctx.from_vector(positions, {kTokens});
  seq.seed = 7;
  return seq;
}

// State `layer` of token t is 1000 · layer + t.
std::vector<Tensor> numbered(RankContext& ctx, int64_t count) {
  std::vector<Tensor> states;
  for (int64_t layer = 0; layer < count; ++layer) {
    std::vector<double> values;
    for (int64_t i = 0; i < kTokens * kHidden; ++i)
      values.push_back(static_cast<double>(1000 * layer + i / kHidden));
    states.push_back(ctx.from_vector(values, {kTokens, kHidden}));
  }
  return states;
}

TEST(HiddenStateMixing, EachTokenReadsOneStateThatSpeaksOfTheSameTarget) {
  RankContext ctx;
  const SeqInfo seq = sequences(ctx);
  for (const int64_t count : {2, 3, 4}) {
    const auto mixed = ctx.to_vector<double>(mix_hidden_states(ctx, numbered(ctx, count), seq, 5, {}));
    std::vector<int64_t> drawn(static_cast<size_t>(count));
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto value = static_cast<int64_t>(mixed[static_cast<size_t>(t * kHidden)]);
      EXPECT_EQ(mixed[static_cast<size_t>(t * kHidden + 1)], static_cast<double>(value));
      const int64_t layer = value / 1000, from = value % 1000;
      ++drawn[static_cast<size_t>(layer)];
      EXPECT_EQ(from - t, count - 1 - layer) << "token " << t;
      EXPECT_EQ(from / kLength, t / kLength) << "token " << t << " reads another sequence";
    }
    for (const int64_t times : drawn) EXPECT_GT(times, kTokens / count / 2) << count;
  }
}

TEST(HiddenStateMixing, StepsAndLayersDrawAnew) {
  RankContext ctx;
  SeqInfo seq = sequences(ctx);
  const auto states = numbered(ctx, 3);
  std::set<std::vector<double>> seen;
  for (const int64_t step : {0, 1})
    for (const int64_t layer : {5, 6}) {
      seq.step = step;
      seen.insert(ctx.to_vector<double>(mix_hidden_states(ctx, states, seq, layer, {})));
    }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(HiddenStateMixing, Gradients) {
  RankContext ctx;
  const SeqInfo seq = sequences(ctx);
  std::vector<Tensor> states;
  for (uint64_t i = 0; i < 3; ++i) states.push_back(testing::random_tensor(ctx, {kTokens, kHidden}, i));
  testing::gradcheck(
      ctx,
      [&](RankContext& c, const std::vector<Tensor>& x, const std::vector<Weight>&) {
        return std::vector{mix_hidden_states(c, x, seq, 5, {})};
      },
      states, {}, 1e-9);
}

}  // namespace
}  // namespace megatron
