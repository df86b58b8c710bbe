#include "megatron/inference/ngram_draft.h"

#include <gtest/gtest.h>

#include <random>

namespace megatron {
namespace {

using Tokens = std::vector<int64_t>;

TEST(NgramDraft, GoesOnAsBefore) {
  NgramDraft draft;
  EXPECT_EQ(draft.propose(Tokens{1, 2, 3}, 4), Tokens{});
  EXPECT_EQ(draft.propose(Tokens{1, 2, 3, 4, 5, 1, 2}, 3), (Tokens{3, 4, 5}));
  // The longest match decides, then the latest.
  EXPECT_EQ(draft.propose(Tokens{1, 2, 3, 4, 5, 1, 2, 9, 7, 2, 3, 8, 1, 2, 3}, 1), Tokens{4});
  EXPECT_EQ(NgramDraft().propose(Tokens{5, 6, 1, 5, 6, 2, 5, 6}, 1), Tokens{2});
}

TEST(NgramDraft, GoesOnFromItself) {
  EXPECT_EQ(NgramDraft().propose(Tokens{4, 1, 2, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
}

// Told a text token by token or at once: the same guesses, which stand in the text behind its last two
// tokens.
TEST(NgramDraft, LearnsAsTextsGrow) {
  std::mt19937 random(1);
  Tokens text;
  NgramDraft grows;
  for (int i = 0; i < 300; ++i) {
    text.push_back(static_cast<int64_t>(random() % 6));
    const Tokens guess = grows.propose(text, 3);
    EXPECT_EQ(guess, NgramDraft().propose(text, 3));
    if (guess.empty()) continue;
    bool found = false;
    for (size_t end = 2; end < text.size() && !found; ++end)
      found = text[end - 2] == text[text.size() - 2] && text[end - 1] == text.back() && text[end] == guess[0];
    EXPECT_TRUE(found) << "token " << i;
  }
}

}  // namespace
}  // namespace megatron
