// Templates with the constructs of published ones, against what jinja2 makes of them
// (tests/upstream/chat_fuzz.py).
#include <gtest/gtest.h>

#include <map>

#include "megatron/base/text_file.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

TEST(ChatText, RendersAsJinja) {
  const std::string folder = std::string(MEGATRON_SOURCE_DIR) + "/tests/text/chat/";
  const Json all = Json::read(folder + "expected.json");
  ChatOptions options;
  options.now = std::chrono::system_clock::from_time_t(all.at("now").as_int());
  std::map<std::string, ChatTemplate> templates;
  int rendered = 0, raised = 0;
  for (const Json& one : all.at("cases").as_array()) {
    const std::string& file = one.at("template").as_string();
    auto parsed = templates.find(file);
    if (parsed == templates.end())
      parsed = templates.emplace(file, ChatTemplate(read_text_file(folder + file))).first;
    const Json& names = all.at("conversations")[static_cast<size_t>(one.at("conversation").as_int())];
    const std::string label = file + " of conversation " + one.at("conversation").dump();
    try {
      const ChatRendering rendering = parsed->second.render(names, options);
      ASSERT_TRUE(one.contains("text")) << label << " should raise";
      EXPECT_EQ(rendering.text, one.at("text").as_string()) << label;
      Json spans = Json::array();
      auto characters = [&](size_t bytes) {
        return Json(count_code_points(std::string_view(rendering.text).substr(0, bytes)));
      };
      for (const TextSpan& span : rendering.generations)
        spans.push_back(Json(Json::Array{characters(span.begin), characters(span.end)}));
      EXPECT_EQ(spans.dump(), one.at("generations").dump()) << label;
      ++rendered;
    } catch (const TemplateError& error) {
      ASSERT_TRUE(one.contains("raises")) << label << ": " << error.what();
      if (one.at("raises").is_string()) {
        EXPECT_EQ(error.what(), one.at("raises").as_string()) << label;
      }
      ++raised;
    }
  }
  EXPECT_GT(rendered, 300);
  EXPECT_GT(raised, 40);
}

}  // namespace
}  // namespace megatron::chat
