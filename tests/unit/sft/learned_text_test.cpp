#include "megatron/datasets/sft/learned_text.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/datasets/sft/sft_tokens.h"

namespace megatron {
namespace {

const char* const kChat =
    R"({"messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}, {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]})";

std::vector<std::string> learned(const LearnedText& text) {
  std::vector<std::string> parts;
  for (const auto& span : text.learned) parts.push_back(text.text.substr(span.begin, span.end - span.begin));
  return parts;
}

LearnedText render(const char* source, LossMode mode = LossMode::assistant, const char* row = kChat) {
  return render_conversation(parse_sft_row(Json::parse(row), "f:1"), chat::ChatTemplate(source),
                             Json::object(), mode, "f:1");
}

const char* const kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}";
const char* const kMarked =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content "
    "}}<end>{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}{% endfor %}";

TEST(LearnedText, TheSameWithAndWithoutGenerationBlocks) {
  for (const char* source : {kPlain, kMarked}) {
    const LearnedText text = render(source);
    EXPECT_EQ(text.text, "<user>q1<end><assistant>a1<end><user>q2<end><assistant>a2<end>");
    EXPECT_EQ(learned(text), (std::vector<std::string>{"a1<end>", "a2<end>"}));
    EXPECT_EQ(learned(render(source, LossMode::last_turn)), std::vector<std::string>{"a2<end>"});
    EXPECT_EQ(learned(render(source, LossMode::full)), std::vector<std::string>{text.text});
    const char* completion =
        R"({"prompt": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}, {"role": "user", "content": "q2"}],
                                 "completion": [{"role": "assistant", "content": "a2"}]})";
    EXPECT_EQ(learned(render(source, LossMode::assistant, completion)), std::vector<std::string>{"a2<end>"});
  }
}

TEST(LearnedText, RefusesToGuessWhereATemplateRewritesAnswers) {
  const char* rewrites =
      "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else 'gone' "
      "}}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_THROW(render(rewrites), ConfigError);
  EXPECT_EQ(learned(render(rewrites, LossMode::last_turn)), std::vector<std::string>{"a2<end>"});
  EXPECT_THROW(render("{{ raise_exception('no') }}"), ConfigError);
}

TEST(LearnedText, FillsPromptsIntoAForm) {
  const SftRow row = parse_sft_row(Json::parse(R"({"input": "in", "output": "out"})"), "f:1");
  const LearnedText text = fill_prompt(row, "Q: {input}\nA: {output}", LossMode::assistant, "f:1");
  EXPECT_EQ(text.text, "Q: in\nA: out");
  EXPECT_EQ(learned(text), std::vector<std::string>{"out"});
  EXPECT_EQ(text.cuts, std::vector<size_t>{9});
  EXPECT_THROW(fill_prompt(row, "{output} {input}", LossMode::assistant, "f:1"), ConfigError);
}

// Two bytes a token, so that borders of spans fall inside tokens.
TokensWithOffsets encode_pairs(std::string_view text) {
  TokensWithOffsets result;
  for (size_t at = 0; at < text.size(); at += 2) {
    result.ids.push_back(text[at]);
    result.offsets.push_back({at, std::min(at + 2, text.size())});
  }
  return result;
}

TEST(SftTokens, LearnsEveryTokenThatSharesAByteWithAnAnswer) {
  const LearnedText text{.text = "abcdefghi", .learned = {{3, 5}, {8, 9}}, .cuts = {}};
  const SftTokens tokens = encode_learned(text, encode_pairs, {.bos = 1, .eos = 2});
  EXPECT_EQ(tokens.ids, (std::vector<int64_t>{1, 'a', 'c', 'e', 'g', 'i', 2}));
  EXPECT_EQ(tokens.learned, (std::vector<uint8_t>{0, 0, 1, 1, 0, 1, 1}));
}

TEST(SftTokens, CutsPromptsBeforeCompletions) {
  const LearnedText text{.text = "abcdefgh", .learned = {{4, 8}}, .cuts = {4}};
  auto ids = [&](SftTokenOptions options) { return encode_learned(text, encode_pairs, options).ids; };
  EXPECT_EQ(ids({.bos = {}, .eos = 0, .max_length = 4, .cut_prompt_first = true}),
            (std::vector<int64_t>{'a', 'e', 'g', 0}));
  EXPECT_EQ(
      ids({.bos = {}, .eos = 0, .max_length = 4, .cut_prompt_first = true, .cut_prompt_at_start = true}),
      (std::vector<int64_t>{'c', 'e', 'g', 0}));
  EXPECT_EQ(ids({.bos = {}, .eos = 0, .max_length = 2, .cut_prompt_first = true}),
            (std::vector<int64_t>{'e', 'g'}));
  EXPECT_EQ(ids({.bos = {}, .eos = {}, .max_length = 3}), (std::vector<int64_t>{'a', 'c', 'e'}));
}

TEST(SftTokens, ShiftsLabelsAndMask) {
  const SftTokens tokens{.ids = {5, 6, 7}, .learned = {0, 0, 1}};
  const SftSample sample = make_sft_sample(tokens, 4, 9);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{5, 6, 9, 9}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{6, 7, 9, 9}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 1, 0, 0}));
  EXPECT_EQ(padded_length({tokens}, 4096), 16);
  EXPECT_EQ(
      padded_length({SftTokens{.ids = std::vector<int64_t>(34), .learned = std::vector<uint8_t>(34)}}, 40),
      40);
}

}  // namespace
}  // namespace megatron
