#include "megatron/inference/constraint/behind_marker.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/constraint/walk.h"

namespace megatron {
namespace {

// Bytes as tokens, some that cross the marker's end, a special token that is the marker, and the end.
SharedVocabulary marker_vocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"</", "think", ">", ">\n", ">\n\n", "</think>", "</think>a", "></", "", ""})
    bytes.emplace_back(text);
  const auto size = static_cast<int64_t>(bytes.size());
  return std::make_shared<const ConstraintVocabulary>(std::move(bytes), std::vector<int64_t>{size - 1}, size);
}
enum Token : int64_t {
  kBegin = 256,
  kWord,
  kClose,
  kCloseLine,
  kCloseLines,
  kWhole,
  kWholeMore,
  kCloseBegin,
  kSpecial,
  kEnd
};

std::vector<int64_t> behind(const std::vector<int64_t>& tokens, std::optional<int64_t> marker = {}) {
  const SharedVocabulary vocabulary = marker_vocabulary();
  const auto constraint =
      constrain_behind(vocabulary, "</think>", marker, compile_choices(vocabulary, {"a"}));
  const auto state = constraint->start();
  for (int64_t token : tokens) {
    const std::vector<int64_t> now = allowed_tokens(*state, vocabulary->size);
    EXPECT_TRUE(std::ranges::find(now, token) != now.end()) << token;
    state->advance(token);
  }
  return allowed_tokens(*state, vocabulary->size);
}

bool has(const std::vector<int64_t>& tokens, int64_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

TEST(BehindMarker, TextBeforeItIsFree) {
  const std::vector<int64_t> first = behind({});
  EXPECT_EQ(first.size(), 266U - 1) << "all but the token that goes on behind the marker";
  EXPECT_FALSE(has(first, kWholeMore));
  EXPECT_TRUE(has(first, kCloseLine));
  EXPECT_TRUE(has(first, kEnd));
  EXPECT_EQ(behind({'x', kCloseLine, kBegin, 'y'}).size(), 265U) << "a beginning that is none";
}

TEST(BehindMarker, TextBehindItIsHeld) {
  const std::vector<int64_t> a = {'a'};
  EXPECT_EQ(behind({'x', kBegin, kWord, kClose}), a);
  EXPECT_EQ(behind({kWhole}), a);
  EXPECT_EQ(behind({'<', kBegin, kWord, '>'}), a);
  EXPECT_EQ(behind({kWhole, 'a'}), std::vector<int64_t>{kEnd});
  EXPECT_EQ(behind({'x', kSpecial}, kSpecial), a);
  EXPECT_GT(behind({'x', kSpecial}).size(), 200U) << "a token that is not the marker";
}

TEST(BehindMarker, TokensAcrossItsEndAreNotAllowed) {
  const std::vector<int64_t> before = behind({kBegin, kWord});
  EXPECT_TRUE(has(before, kClose));
  for (int64_t token : {kCloseLine, kCloseLines, kCloseBegin}) EXPECT_FALSE(has(before, token)) << token;
}

}  // namespace
}  // namespace megatron
