// Renderings of transformers' apply_chat_template, and its masks of what the assistant wrote.
#include <gtest/gtest.h>

#include <map>

#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

Json golden(const std::string& file) {
  return Json::read(std::string(MEGATRON_GOLDEN_DIR) + "/tokenizers/" + file);
}

// What transformers gives a template: the conversation, its own arguments and the special tokens.
Json names_of(const Json& all, const Json& one) {
  Json names = Json::object();
  names["bos_token"] = all.at("bos_token");
  names["eos_token"] = all.at("eos_token");
  names["messages"] = all.at("conversations").at(one.at("conversation").as_string());
  names["tools"] = Json();
  names["documents"] = Json();
  names["add_generation_prompt"] = one.at("add_generation_prompt");
  for (const auto& [name, value] : one.at("kwargs").as_object()) names[name] = value;
  return names;
}

TEST(GoldenChat, EveryRenderingAndEveryError) {
  const Json all = golden("chat/expected.json");
  int rendered = 0, raised = 0;
  for (const Json& one : all.at("cases").as_array()) {
    const std::string label = one.at("template").as_string() + " of " + one.at("conversation").as_string();
    const ChatTemplate chat_template(all.at("templates").at(one.at("template").as_string()).as_string());
    if (one.contains("raises")) {
      try {
        chat_template.render(names_of(all, one));
        ADD_FAILURE() << label << " raised nothing";
      } catch (const TemplateError& error) {
        EXPECT_EQ(error.what(), one.at("message").as_string()) << label;
        ++raised;
      }
    } else {
      EXPECT_EQ(chat_template.render(names_of(all, one)).text, one.at("text").as_string()) << label;
      ++rendered;
    }
  }
  EXPECT_EQ(rendered, 216);
  EXPECT_EQ(raised, 8);
}

// The bytes of each token of a byte-level vocabulary, whose characters stand for bytes.
std::map<int64_t, size_t> token_sizes(const Json& tokenizer) {
  std::map<int64_t, size_t> sizes;
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").as_object())
    sizes[id.as_int()] = static_cast<size_t>(count_code_points(token));
  for (const Json& added : tokenizer.at("added_tokens").as_array())
    sizes[added.at("id").as_int()] = added.at("content").as_string().size();
  return sizes;
}

TEST(GoldenChat, GenerationSpansGiveTheAssistantMask) {
  const Json all = golden("chat/expected.json");
  const auto sizes = token_sizes(golden(all.at("tokenizer").as_string()));
  int masks = 0;
  for (const Json& one : all.at("cases").as_array()) {
    if (!one.contains("assistant_mask")) continue;
    const ChatTemplate chat_template(all.at("templates").at(one.at("template").as_string()).as_string());
    ASSERT_TRUE(chat_template.has_generation());
    const ChatRendering rendering = chat_template.render(names_of(all, one));
    const Json &ids = one.at("assistant_mask_ids"), &mask = one.at("assistant_mask");
    size_t begin = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t end = begin + sizes.at(ids[i].as_int());
      bool inside = false;
      for (const TextSpan& span : rendering.generations)
        inside = inside || (begin < span.end && end > span.begin);
      EXPECT_EQ(int64_t{inside}, mask[i].as_int()) << one.at("conversation").as_string() << " token " << i;
      begin = end;
    }
    EXPECT_EQ(begin, rendering.text.size());
    ++masks;
  }
  EXPECT_EQ(masks, 8);
}

}  // namespace
}  // namespace megatron::chat
