// Thousands of spoiled inputs for each parser: an Error or a value, never a crash, a hang or another
// exception.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "fuzz/mutate.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/config/text.h"
#include "megatron/config/yaml.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// Feeds `count` spoiled texts; each must end within ten seconds, which is a thousand times what it takes.
template <class Parse>
void fuzz(Mutator mutator, int count, Parse parse) {
  int taken = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string text = mutator.next();
    auto begin = std::chrono::steady_clock::now();
    try {
      parse(text);
      ++taken;
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << "\n" << text;
    }
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "input " << i << ":\n"
                                                                                  << text;
  }
  EXPECT_GT(refused, count / 20) << "the inputs are hardly spoiled";
  EXPECT_GT(taken, 0) << "the inputs are spoiled beyond all parsing";
}

TEST(Fuzz, Yaml) {
  std::vector<std::string> texts = {
      "model:\n  num_layers: 4\n  hidden_size: 32 # width\n  moe_layer_freq: [0, 1, 1]\noptimizer: {lr: "
      "3e-4}\n",
      "base: &base\n  seq_length: 128\nmodel:\n  <<: *base\n  activation_func: \"silu\"\n  tags: [a, 'b', "
      "~]\n",
      "train:\n  data: |\n    several\n    lines\n  ratio: .inf\n  flag: true\nlist:\n- 1\n- {a: [2, 3]}\n"};
  Mutator mutator(1, texts,
                  {"&a ",
                   "*a",
                   "<<: ",
                   "{",
                   "}",
                   "[",
                   "]",
                   ": ",
                   "- ",
                   "\n",
                   "\t",
                   "!!int ",
                   "? ",
                   "|",
                   ">",
                   "%YAML",
                   "---\n",
                   "\"",
                   "'",
                   "\\x",
                   "&a [*a]",
                   "1e999",
                   "0x7fffffffffffffffff",
                   std::string(1, '\0')});
  fuzz(mutator, 20000, [](const std::string& text) { read_yaml(text, "file"); });
}

TEST(Fuzz, Overrides) {
  std::vector<std::string> texts = {"[1, 2.5, true, null]",
                                    "{a: 1, b: {c: [x, 'y']}}",
                                    "'it''s'",
                                    "\"a\\nb\"",
                                    "${model.hidden_size}",
                                    "-1e-4",
                                    "([0]*3+[1]*5)*2",
                                    "[[1,2],[3]]"};
  std::vector<std::string> words = {
      "[",     "]",  "{",          "}", ",", ":", "'",        "\"",
      "\\u12", "${", "*999999999", "+", "(", ")", "[[[[[[[[", "9999999999999999999",
      "inf",   "-"};
  fuzz(Mutator(2, texts, words), 50000,
       [&](const std::string& text) { require(!parse_override_value(text).objection, "refused"); });
  fuzz(Mutator(3, texts, words), 50000,
       [&](const std::string& text) { require(!parse_pattern(text).objection, "refused"); });
}

TEST(Fuzz, SafetensorsHeaders) {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
  uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header + std::string(32, 'x');
  TempDir dir;
  std::string path = dir / "x.safetensors";
  std::vector<std::string> words = {"[",
                                    "]",
                                    "{",
                                    "}",
                                    "\"",
                                    ",",
                                    ":",
                                    "-1",
                                    "1e300",
                                    "18446744073709551615",
                                    "9223372036854775807",
                                    "\"F32\"",
                                    "\"U64\"",
                                    "\\ud800",
                                    "\"a\":",
                                    std::string(8, '\xff'),
                                    std::string(8, '\0')};
  // Both the whole file, and the header alone with its true length before it, so that its JSON is reached.
  auto parse = [&](const std::string& text) {
    write_text(path, text);
    SafetensorsFile opened(path);
    for (const SafetensorsEntry& entry : opened.entries()) opened.tensor(entry.name);
  };
  fuzz(Mutator(4, {file}, words), 5000, parse);
  fuzz(Mutator(5, {header}, words), 10000, [&](const std::string& text) {
    uint64_t size = text.size();
    parse(std::string(reinterpret_cast<const char*>(&size), 8) + text + std::string(32, 'x'));
  });
}

}  // namespace
}  // namespace megatron::testing
