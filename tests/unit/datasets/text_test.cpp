#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/datasets/text/byte_source.h"
#include "megatron/datasets/text/json_fields.h"
#include "megatron/datasets/text/sentences.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// The values of two keys, or what is wrong.
std::string parse(std::string_view line) {
  std::vector<JsonText> values;
  if (const auto problem = JsonFields({"a", "b"}).parse(line, values)) return "! " + *problem;
  const auto text = [](const JsonText& value) {
    std::string result = value.text;
    for (auto end = value.ends.rbegin(); end != value.ends.rend(); ++end) result.insert(*end, "/");
    return value.list ? fmt::format("[{}]", result) : result;
  };
  return text(values[0]) + "|" + text(values[1]);
}

TEST(JsonFields, TakesStringsOutOfObjects) {
  EXPECT_EQ(parse(R"({"a":"x","b":"y"})"), "x|y");
  EXPECT_EQ(parse(R"(  { "b" : "" , "c":[1,-2.5e+3,{"d":null}],"a":"long enough for several words" } )"),
            "long enough for several words|");
  EXPECT_EQ(parse(R"({"a":"first","b":"","a":"last"})"), "last|");
  EXPECT_EQ(parse(R"({"a":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00","b":"é漢😀"})"), "\"\\/\b\f\n\r\té😀|é漢😀");
  EXPECT_EQ(parse(R"({"\u0061":"escaped key","b":"","n":NaN,"i":-Infinity,"e":{},"l":[[],[{}]]})"),
            "escaped key|");
}

TEST(JsonFields, TakesListsOfStrings) {
  EXPECT_EQ(parse(R"({"a":["x","","y z"],"b":[]})"), "[x//y z/]|[]");
  EXPECT_EQ(parse(R"({"a":[ "\\"  , "\u00e9" ] ,"b":"s"})"), "[\\/é/]|s");
  EXPECT_EQ(parse(R"({"a":"first","b":"","a":["last"]})"), "[last/]|");
  EXPECT_EQ(parse(R"({"a":["x"],"b":"","a":"last"})"), "last|");
  for (const char* line : {R"({"a":["x",1],"b":""})", R"({"a":[["x"]],"b":""})", R"({"a":[null],"b":""})"})
    EXPECT_EQ(parse(line), "! the value of 'a' is neither a string nor a list of strings");
  for (const char* line : {R"({"a":["x",],"b":""})", R"({"a":["x" "y"],"b":""})", R"({"a":["x","b":""})"})
    EXPECT_TRUE(parse(line).starts_with("! ")) << line;
}

TEST(JsonFields, RefusesWhatPythonRefuses) {
  for (const char* line : {"",
                           "[]",
                           "{",
                           R"({"a")",
                           R"({"a":)",
                           R"({"a":"x)",
                           R"({"a":"x","b":"y")",
                           R"({"a":"x" "b":"y"})",
                           R"({"a":"x","b":"y",})",
                           R"({"a":"x","b":"y"} z)",
                           R"({a:"x","b":"y"})",
                           R"({"a":"\q","b":""})",
                           R"({"a":"\u12","b":""})",
                           R"({"a":"\ud800","b":""})",
                           R"({"a":"\udc00\ud800","b":""})",
                           "{\"a\":\"\n\",\"b\":\"\"}",
                           R"({"a":"","b":"","c":01})",
                           R"({"a":"","b":"","c":1.})",
                           R"({"a":"","b":"","c":1e})",
                           R"({"a":"","b":"","c":-})",
                           R"({"a":"","b":"","c":tru})",
                           R"({"a":"","b":"","c":[1,]})",
                           R"({"a":"","b":"","c":{"d"}})",
                           R"({"a":"","b":"","c":[1}})",
                           "{\"a\":\"\x80\",\"b\":\"\"}",
                           "{\"a\":\"\xc0\xaf\",\"b\":\"\"}",
                           "{\"a\":\"\xed\xa0\x80\",\"b\":\"\"}",
                           "{\"a\":\"\xf4\x90\x80\x80\",\"b\":\"\"}",
                           "{\"a\":\"\xe6\xbc\",\"b\":\"\"}"}) {
    EXPECT_TRUE(parse(line).starts_with("! ")) << line << " gave " << parse(line);
  }
  EXPECT_EQ(parse(R"({"a":"x"})"), "! has no key 'b'");
  EXPECT_EQ(parse(R"({"a":"x","b":3})"), "! the value of 'b' is neither a string nor a list of strings");
  EXPECT_EQ(parse(R"({"a":"x","b")"), "! a colon was expected at byte 12");
  EXPECT_TRUE(parse("{\"a\":" + std::string(100000, '[')).find("nested") != std::string::npos);
}

std::vector<std::string> sentences(std::string_view text, bool keep = false) {
  const auto views = split_sentences(text, keep);
  return {views.begin(), views.end()};
}

TEST(Sentences, AreCutByRules) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(sentences("One here. Two there! \"Three?\" Four…  Five"),
            (Texts{"One here.", "Two there!", "\"Three?\"", "Four…", "Five"}));
  EXPECT_EQ(sentences("Dr. Smith met J. Doe, e.g. at 3.14 p.m. today. Then (all of them.) left."),
            (Texts{"Dr. Smith met J. Doe, e.g. at 3.14 p.m. today.", "Then (all of them.) left."}));
  EXPECT_EQ(sentences("1. First point. 2. Second."), (Texts{"1. First point.", "2. Second."}));
  EXPECT_EQ(sentences("他来了。她走了！好"), (Texts{"他来了。", "她走了！", "好"}));
  EXPECT_EQ(sentences("What?! Yes... no. "), (Texts{"What?!", "Yes... no."}));
  EXPECT_EQ(sentences("  \n "), Texts{});
  EXPECT_EQ(sentences(" A b.\n\nC d. \n"), (Texts{"A b.", "C d."}));
  EXPECT_EQ(sentences(" A b.\n\nC d. \n", true), (Texts{"A b.\n\n", "C d. \n"}));
}

std::string read_all(ByteSource& source, size_t step) {
  std::string text, piece(step, '\0');
  while (const size_t count = source.read(piece)) text.append(piece, 0, count);
  return text;
}

TEST(ByteSource, ArraysBecomeLines) {
  TempDir dir;
  const std::string path = dir / "a.json";
  auto lines = [&](const std::string& text) {
    write_text(path, text);
    return read_all(*array_to_lines(open_bytes(path), "a.json"), 3);
  };
  EXPECT_EQ(lines(" [ {\"a\":\n \"x],[\\\"\" } ,\n[1,\n2], 3 ]\n"), "{\"a\":  \"x],[\\\"\" } \n[1, 2]\n3 \n");
  EXPECT_EQ(lines("[]"), "");
  for (const char* text : {"", "{}", "[1", "[1,]", "[,1]", "[1] 2", "[{\"a\"", "[}]", "[\"a"})
    EXPECT_NE(error_of([&] { lines(text); }), "no error") << text;
}

}  // namespace
}  // namespace megatron::testing
