#include "megatron/cli/commands/tokenizer_chat.h"

#include <gtest/gtest.h>

#include <sstream>

#include "megatron/base/error.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

std::string run(std::vector<std::string> args, const std::string& input) {
  std::FILE* out = std::tmpfile();
  Invocation invocation{std::move(args), out, Log(LogLevel::error)};
  std::istringstream in(input);
  EXPECT_EQ(run_tokenizer_chat(invocation, in), 0);
  std::rewind(out);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  return text;
}

TEST(TokenizerChat, RendersALineEach) {
  testing::TempDir dir;
  testing::write_text(dir / "t.jinja",
                      "{{ bos_token }}{% for m in messages %}{{ m.role }}{% endfor %}{{ x.y }}{{ '>' if "
                      "add_generation_prompt }}\n");
  const std::string lines =
      "{\"messages\": [{\"role\": \"user\"}], \"bos_token\": \"é\", \"x\": {}, \"add_generation_prompt\": "
      "true}\n\n"
      "{\"messages\": []}\nnot json\n[]\n";
  EXPECT_EQ(run({"--template", dir / "t.jinja"}, lines),
            "{\"text\":\"éuser>\"}\n"
            "{\"error\":\"line 1: 'x' is undefined\"}\n"
            "{\"error\":\"conversation: malformed JSON near byte 2: parse error at line 1, column 2: syntax "
            "error while parsing value - invalid "
            "literal; last read: 'no'\"}\n"
            "{\"error\":\"conversation: it is an array, expected an object\"}\n");
}

TEST(TokenizerChat, ChoosesAmongTheTemplatesOfAModel) {
  testing::TempDir dir;
  testing::write_text(
      dir / "tokenizer_config.json",
      R"({"bos_token": "<s>", "chat_template": [{"name": "default", "template": "{{ bos_token }}{% generation %}d{% endgeneration %}"},
                          {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(run({"--template", dir.path(), "--spans"}, "{}\n{\"tools\": []}\n"),
            "{\"text\":\"<s>d\",\"spans\":[[3,4]]}\n{\"text\":\"t\",\"spans\":[]}\n");
  EXPECT_EQ(run({"--template", dir.path(), "--template-name", "tool_use"}, "{}\n"), "{\"text\":\"t\"}\n");
}

TEST(TokenizerChat, RefusesWrongUsage) {
  Invocation none{{}, stdout, Log(LogLevel::error)},
      word{{"--template", "x", "more"}, stdout, Log(LogLevel::error)};
  std::istringstream in;
  EXPECT_THROW(run_tokenizer_chat(none, in), UsageError);
  EXPECT_THROW(run_tokenizer_chat(word, in), UsageError);
  EXPECT_NE(tokenizer_chat_help().find("--template PATH"), std::string::npos);
}

}  // namespace
}  // namespace megatron
