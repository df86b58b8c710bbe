#include "megatron/tokenizers/chat/template_folder.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "support/temp_dir.h"

namespace megatron::chat {
namespace {

using testing::TempDir;
using testing::write_text;

TEST(TemplateFolder, PrefersFilesToSettings) {
  TempDir dir;
  write_text(
      dir / "tokenizer_config.json",
      R"({"chat_template": "old", "bos_token": "<s>", "eos_token": {"content": "</s>"}, "added_tokens_decoder": {}})");
  write_text(dir / "special_tokens_map.json", R"({"pad_token": "<pad>"})");
  EXPECT_EQ(read_chat_templates(dir.path()).choose(), "old");
  write_text(dir / "chat_template.jinja", "new");
  std::filesystem::create_directory(dir / "additional_chat_templates");
  write_text(dir / "additional_chat_templates/tool_use.jinja", "tools");
  const ChatTemplates found = read_chat_templates(dir.path());
  EXPECT_EQ(found.choose(), "new");
  EXPECT_EQ(found.choose("", true), "tools");
  EXPECT_EQ(found.choose("tool_use"), "tools");
  EXPECT_EQ(found.special_tokens.dump(), R"({"bos_token":"<s>","eos_token":"</s>"})");
  EXPECT_THROW(found.choose("rag"), ConfigError);
}

TEST(TemplateFolder, ReadsNamedTemplatesAndOldFolders) {
  TempDir dir;
  write_text(
      dir / "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]})");
  write_text(dir / "special_tokens_map.json", R"({"pad_token": {"content": "<pad>", "lstrip": false}})");
  const ChatTemplates found = read_chat_templates(dir.path());
  EXPECT_EQ(found.sources.size(), 2u);
  EXPECT_EQ(found.choose("rag"), "r");
  EXPECT_EQ(found.choose("", true), "d");
  EXPECT_EQ(found.special_tokens.at("pad_token").as_string(), "<pad>");

  TempDir processor;
  write_text(processor / "chat_template.json", R"({"chat_template": "p"})");
  EXPECT_EQ(read_chat_templates(processor.path()).choose(), "p");
  TempDir empty;
  EXPECT_THROW(read_chat_templates(empty.path()).choose(), ConfigError);
  write_text(empty / "tokenizer_config.json", R"({"chat_template": 1})");
  EXPECT_THROW(read_chat_templates(empty.path()), ConfigError);
}

TEST(TemplateFolder, GivesATemplateWhatTransformersGives) {
  const Json names = chat_names(Json::parse(R"({"bos_token": "<s>"})"),
                                Json::parse(R"({"messages": [], "bos_token": "B", "x": 1})"));
  EXPECT_EQ(
      names.dump(),
      R"({"bos_token":"B","tools":null,"documents":null,"add_generation_prompt":false,"messages":[],"x":1})");
}

}  // namespace
}  // namespace megatron::chat
