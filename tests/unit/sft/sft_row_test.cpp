#include "megatron/datasets/sft/sft_row.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

SftRow parse(const std::string& text, SftFormat format = SftFormat::automatic) {
  return parse_sft_row(Json::parse(text), "rows.jsonl:7", format);
}

TEST(SftRow, ReadsConversationsOfBothKinds) {
  const SftRow messages = parse(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": [1]}],
                                    "tools": "[{\"name\": \"f\"}]", "chat_template_kwargs": {"thinking": true}})");
  EXPECT_TRUE(messages.is_chat);
  EXPECT_EQ(messages.names.dump(), R"({"tools":[{"name":"f"}],"thinking":true})");
  const SftRow turns = parse(
      R"({"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 1}]})");
  EXPECT_EQ(
      turns.messages.dump(),
      R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":1}])");
}

TEST(SftRow, ReadsPromptsAndCompletions) {
  EXPECT_EQ(parse(R"({"prompt": "p", "completion": "c"})").completion, "c");
  EXPECT_EQ(parse(R"({"input": "i", "output": "o"})").prompt, "i");
  EXPECT_EQ(parse(R"({"instruction": "do", "input": "it", "output": "o"})").prompt, "do\n\nit");
  const SftRow chat = parse(
      R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})");
  EXPECT_TRUE(chat.is_chat);
  EXPECT_EQ(chat.first_learned, 1u);
}

TEST(SftRow, RefusesRowsThatAreNeither) {
  EXPECT_THROW(parse(R"({"text": "x"})"), ConfigError);
  EXPECT_THROW(parse(R"({"messages": []})"), ConfigError);
  EXPECT_THROW(parse(R"({"messages": [{"content": "x"}]})"), ConfigError);
  EXPECT_THROW(parse(R"({"messages": "not json"})"), Error);
  EXPECT_THROW(parse(R"([1])"), ConfigError);
  EXPECT_THROW(parse(R"({"input": "i", "output": "o"})", SftFormat::chat), ConfigError);
  try {
    parse(R"({"messages": [{"role": "user"}]})");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rows.jsonl:7: message 0 has neither content nor tool_calls");
  }
}

TEST(SftRow, ReadsPreferencePairs) {
  const auto texts =
      parse_preference_row(Json::parse(R"({"prompt": "p", "chosen": "good", "rejected": "bad"})"), "f:1");
  EXPECT_EQ(texts.first.completion, "good");
  EXPECT_EQ(texts.second.completion, "bad");
  EXPECT_EQ(texts.second.prompt, "p");
  const auto lists = parse_preference_row(
      Json::parse(R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
      "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]})"),
      "f:1");
  EXPECT_EQ(lists.first.first_learned, 1u);
  EXPECT_EQ(lists.second.messages.size(), 2u);
  EXPECT_THROW(parse_preference_row(Json::parse(R"({"chosen": "a"})"), "f:1"), ConfigError);
}

}  // namespace
}  // namespace megatron
