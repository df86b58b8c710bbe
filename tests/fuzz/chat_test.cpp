// Spoiled chat templates: a text or a TemplateError within bounds of time and memory, never a crash.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "fuzz/mutate.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/chat/chat_template.h"

namespace megatron::testing {
namespace {

TEST(Fuzz, ChatTemplates) {
  const std::filesystem::path folder = std::string(MEGATRON_SOURCE_DIR) + "/tests/text/chat";
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".jinja") texts.push_back(read_text_file(entry.path().string()));
  std::sort(texts.begin(), texts.end());
  ASSERT_GE(texts.size(), 10u);
  texts.insert(texts.end(), {"{{ x[1:-1]|map('upper')|join(', ') }}{{ '%5.2f' % n }}{{ '{:>9}'.format(n) "
                             "}}{{ x|tojson(indent=1) }}",
                             "{% for a in x recursive %}{{ loop(a) if a is iterable and a is not string }}{{ "
                             "loop.cycle(1, 2) }}{% endfor %}",
                             "{% set n = namespace(a=[]) %}{% for i in range(99) %}{% set n.a = n.a + [i, n] "
                             "%}{% endfor %}{{ n.a|length }}"});
  const std::vector<std::string> words = {"{{ ",
                                          " }}",
                                          "{%- ",
                                          " -%}",
                                          "{% for x in x %}",
                                          "{% endfor %}",
                                          "{% if ",
                                          "|tojson",
                                          "|list",
                                          "|sort",
                                          "|reverse",
                                          "|map('string')",
                                          "|groupby('role')",
                                          "|batch(99999999999)",
                                          "|slice(-1)",
                                          "|indent(99999999)",
                                          " * 9999999999",
                                          " ** 99",
                                          "[::-1]",
                                          "[-9223372036854775807:]",
                                          " % (1,)",
                                          "%99999999s",
                                          ".format(x)",
                                          "range(100000)",
                                          "{% macro m() %}{{ m() }}{% endmacro %}",
                                          "m()",
                                          "namespace(x=x)",
                                          "x.split('')",
                                          "{% set x = x ~ x %}",
                                          "{% generation %}",
                                          "{% endgeneration %}",
                                          "{# ",
                                          "\\ud800",
                                          "\\x",
                                          "'",
                                          "\xc3",
                                          std::string(1, '\0'),
                                          "((((((((((",
                                          "9223372036854775807",
                                          "-",
                                          "1e999",
                                          "{% break %}",
                                          "loop.changed(loop)"};
  Mutator mutator(11, texts, words);
  const char* times = std::getenv("MEGATRON_FUZZ_TIMES");
  const int count = 10000 * (times ? std::stoi(times) : 1);
  const Json names = Json::parse(
      R"({"messages": [{"role": "system", "content": "é"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>a</think>b",
          "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}, {"role": "tool", "content": "1"}],
          "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}}}],
          "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "x": [["a", "b"], {"c": null}, "d"], "n": 3})");
  chat::ChatOptions options;
  options.limits = {.steps = 1'000'000, .memory_bytes = size_t{16} << 20, .output_bytes = size_t{4} << 20};
  int taken = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string source = mutator.next();
    const auto begin = std::chrono::steady_clock::now();
    try {
      const auto rendering = chat::ChatTemplate(source).render(names, options);
      EXPECT_LE(rendering.text.size(), options.limits.output_bytes + (size_t{1} << 20));
      ++taken;
    } catch (const chat::TemplateError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << "\n" << source;
    }
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "input " << i << ":\n"
                                                                                  << source;
  }
  EXPECT_GT(refused, count / 20) << "the inputs are hardly spoiled";
  EXPECT_GT(taken, count / 50) << "the inputs are spoiled beyond all parsing";
}

}  // namespace
}  // namespace megatron::testing
