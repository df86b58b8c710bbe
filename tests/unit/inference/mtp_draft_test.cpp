#include <gtest/gtest.h>

#include <algorithm>

#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::small_config;
using testing::SmallModel;

int64_t likeliest(RankContext& ctx, const Tensor& logits, int64_t row) {
  const std::vector<double> values = ctx.to_vector<double>(logits);
  const auto begin = values.begin() + row * logits.size(1);
  return std::max_element(begin, begin + 50) - begin;
}

// What MTP layers guess through their caches, over several steps, is what they say of the whole text.
void guesses_as_trained(const SmallModel& kind) {
  const Config config = small_config(kind);
  const int64_t depths = config.model.mtp_num_layers;
  run_ranks(1, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    Model model(config, ParallelContext::from_sizes(world, parallel_sizes(config, 1)), DType::F64);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, DType::F64);
      parameter->initialize(ctx, 7);
    }
    ASSERT_EQ(model.draft_depths(), depths);
    PagedCache cache(ctx, model.cache_shapes(), DType::F64, 16, 4, 1);
    std::vector<std::unique_ptr<PagedCache>> caches;
    for (int64_t depth = 0; depth < depths; ++depth)
      caches.push_back(std::make_unique<PagedCache>(ctx, model.draft_shapes(depth), DType::F64, 16, 4, 1));
    std::vector<int64_t> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, blocks = {2, 5, 7, 1, 9, 11};
    int64_t read = 0;
    for (int64_t count : {4, 6, 1, 1, 1}) {
      const auto begin = text.begin() + read;
      StepInput step;
      step.sequences.push_back(
          {.tokens = {begin, begin + count}, .first = read, .logits = 1, .blocks = blocks});
      const Tensor logits = model.decode(ctx, step, cache);
      const bool at_end = read + count == std::ssize(text);
      if (at_end) text.push_back(likeliest(ctx, logits, 0));
      DraftInput draft;
      const auto follow = text.begin() + read + 1;
      draft.step.sequences.push_back(
          {.tokens = {follow, follow + count}, .first = read, .logits = at_end ? 1 : 0, .blocks = blocks});
      draft.rows = {0};
      const int64_t further = std::min(depths - 1, text.end() - (follow + count));
      draft.known = {{follow + count, follow + count + further}};
      const auto guesses = model.draft(ctx, draft, caches);
      read += count;
      if (!at_end) continue;

      // The whole text at once. Its end is what was guessed, so each depth sees what it saw before.
      NoGrad no_grad(ctx);
      GptModel& whole = model.decoder(0);
      SeqInfo seq = whole.sequences(ctx, 1, read);
      seq.training = false;
      const auto ids = [&](int64_t from) {
        std::vector<int64_t> tokens(text.begin() + from, text.end());
        for (int64_t depth = 0; std::ssize(tokens) < read; ++depth)
          tokens.push_back(guesses[static_cast<size_t>(depth)][0]);
        tokens.resize(static_cast<size_t>(read));
        return ctx.from_vector(tokens, {read});
      };
      Tensor state = whole.run_stage(ctx, {}, {.ids = ids(0), .seq = seq})[0];
      for (int64_t depth = 0; depth < depths; ++depth) {
        state = whole.run_mtp_layer(ctx, depth, ids(depth + 1), state, seq);
        // Deeper layers keep what earlier guesses said, where these were not taken.
        if (depth > 0 && read > 10) continue;
        EXPECT_EQ(guesses[static_cast<size_t>(depth)][0], likeliest(ctx, whole.logits(ctx, state), read - 1))
            << kind.name << " depth " << depth << " of " << read << " tokens";
      }
    }
  });
}

TEST(MtpDraft, GuessesAsTrained) {
  guesses_as_trained(testing::kMtp);
  guesses_as_trained(testing::kRepeatedMtp);
}

TEST(MtpDraft, InputPassesAsNumbers) {
  DraftInput input;
  input.step.sequences.push_back(
      {.tokens = {5, 6}, .first = 3, .logits = 1, .slot = 2, .prompt = 4, .blocks = {7}});
  input.step.sequences.push_back({.tokens = {8}, .first = 1, .blocks = {9, 1}});
  input.rows = {0, 3};
  input.known = {{}, {4, 2}};
  const std::vector<int64_t> numbers = input.packed();
  const DraftInput again = DraftInput::unpacked(numbers);
  EXPECT_EQ(again.packed(), numbers);
  EXPECT_EQ(again.known, input.known);
  EXPECT_EQ(again.rows, input.rows);
  EXPECT_EQ(again.step.sequences[1].blocks, input.step.sequences[1].blocks);
  EXPECT_THROW(DraftInput::unpacked({9, 1}), Error);
}

}  // namespace
}  // namespace megatron
