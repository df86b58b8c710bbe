#include <gtest/gtest.h>

#include <chrono>

#include "megatron/base/error.h"
#include "unit/constraint/validate.h"
#include "unit/constraint/walk.h"

namespace megatron {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

// Texts of `good` are let through; those of `bad` are not, and do not satisfy the schema either or come in
// another order than ours.
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name"]})",
       {R"({"name":"a"})", R"({"name": "ä\n\u00e4", "age": -3})", "{\n  \"name\": \"a\",\n  \"age\": 12\n}"},
       {R"({})", R"({"age":1})", R"({"name":1})", R"({"name":"a",})", R"({"name":"a","age":01})"}},
      {R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"null"}},"additionalProperties":false})",
       {"{}", "{ }", R"({"a":true})", R"({"b":null})", R"({"a":false,"b":null})"},
       {R"({"c":1})", R"({,"a":true})", R"({"a":true "b":null})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {R"({"ab":1})", R"({"ab":1,"a":true})", R"({"abc":false,"b":true})", R"({"":true})"},
       {R"({"a":1})", R"({"ab":true})", R"({"x":true,"ab":true})"}},
      {R"({"type":"array","items":{"type":"integer","minimum":-12,"maximum":105},"minItems":1,"maxItems":3})",
       {"[1]", "[-12, 105,0]", "[99,100]"},
       {"[]", "[-13]", "[106]", "[1,2,3,4]", "[1.5]", "[-0]"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"boolean"}})",
       {"[]", R"(["a"])", R"(["a",1])", R"(["a",1,true,false])"},
       {"[1]", R"(["a",true])", R"(["a",1,2])"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false,"minItems":1})",
       {R"(["a"])", R"(["a",1])"},
       {"[]", R"(["a",1,1])"}},
      {R"({"type":"number","minimum":0,"exclusiveMaximum":10})",
       {"0", "9.99", "0.5", "9"},
       {"10", "-1", "10.0", "-0.5"}},
      {R"({"type":"number","exclusiveMinimum":-2,"maximum":-1})",
       {"-1", "-1.0", "-1.5"},
       {"-2", "-2.0", "-0.5", "1"}},
      {R"({"type":"number"})", {"0", "-1.5e10", "12.25"}, {"01", ".5", "1.", "+1", "1e", "NaN"}},
      {R"({"type":"string","minLength":2,"maxLength":4})",
       {R"("ab")", R"("äöü語")", R"("\n\u0041")"},
       {R"("a")", R"("abcde")"}},
      {R"({"type":"string","pattern":"^[a-z]+(-[0-9]{2})?$"})",
       {R"("abc")", R"("a-12")"},
       {R"("")", R"("a-1")", R"("A")"}},
      {R"({"type":"string","pattern":"x?\"?[a-z]"})", {R"("12x\"b")", R"("y")"}, {R"("12")"}},
      {R"({"enum":["a","ab",1,null,{"k":[1]}]})",
       {R"("a")", R"("ab")", "1", "null", R"({"k":[1]})"},
       {R"("b")", "2"}},
      {R"({"const":"x"})", {R"("x")"}, {"x"}},
      {R"({"type":["string","null"]})", {"null", R"("a")"}, {"1"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"string"}}]})",
       {"1", R"(["a"])"},
       {"[1]"}},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},"required":["t","x"]},
                    {"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]})",
       {R"({"t":"a","x":1})", R"({"t":"b"})"},
       {R"({"t":"a"})", R"({"t":"c"})"}},
      {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
           "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
      {R"({"type":"object"})", {"{}", R"({"a":[1,{"b":null}]})"}, {"[]"}},
      {R"(true)", {"1", R"("a")", "[true]", "{}"}, {"tru"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-28")"}, {R"("2024-02-30")", R"("2024-2-1")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("10.0.255.1")"}, {R"("256.0.0.1")", R"("1.2.3")"}},
      {R"({"allOf":[{"type":"boolean"}],"description":"d"})", {"true"}, {"1"}},
  };
  return list;
}

TEST(JsonSchema, TextsThatAreAllowed) {
  const SharedVocabulary vocabulary = test_vocabulary();
  for (const Case& one : cases()) {
    const auto constraint = compile_json_schema(vocabulary, Json::parse(one.schema));
    for (const char* text : one.good)
      EXPECT_TRUE(accepts(*constraint, *vocabulary, text)) << one.schema << "\n" << text;
    for (const char* text : one.bad)
      EXPECT_FALSE(accepts(*constraint, *vocabulary, text)) << one.schema << "\n" << text;
  }
}

TEST(JsonSchema, RandomTextsSatisfyIt) {
  const SharedVocabulary vocabulary = test_vocabulary();
  for (const Case& one : cases()) {
    const Json schema = Json::parse(one.schema);
    const auto constraint = compile_json_schema(vocabulary, schema);
    int finished = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const auto text = random_text(*constraint, *vocabulary, seed);
      if (!text) continue;
      ++finished;
      Json value;
      ASSERT_NO_THROW(value = Json::parse(*text)) << one.schema << "\n" << *text;
      EXPECT_TRUE(satisfies(value, schema, schema)) << one.schema << "\n" << *text;
    }
    EXPECT_GT(finished, 10) << one.schema;
  }
}

TEST(JsonSchema, AnyObject) {
  const SharedVocabulary vocabulary = test_vocabulary();
  const auto constraint = compile_json_object(vocabulary);
  for (uint64_t seed = 0; seed < 40; ++seed)
    if (const auto text = random_text(*constraint, *vocabulary, seed)) {
      Json value;
      // A key may come twice, which our reader refuses and JSON allows.
      try {
        value = Json::parse(*text);
        EXPECT_TRUE(value.is_object());
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("stands twice"), std::string::npos) << error.what() << *text;
      }
    }
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedByName) {
  const SharedVocabulary vocabulary = test_vocabulary();
  for (auto [schema, named] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type":"object","patternProperties":{}})", "patternProperties"},
           {R"({"not":{}})", "not"},
           {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
           {R"({"type":"number","multipleOf":0.5})", "multipleOf"},
           {R"({"type":"number","minimum":0.5})", "minimum"},
           {R"({"type":"string","format":"iri"})", "iri"},
           {R"({"type":"thing"})", "thing"},
           {R"({"$ref":"http://x/y"})", "http://x/y"},
           {R"({"$ref":"#/$defs/none"})", "not there"},
           {R"({"$ref":"#"})", "refers to itself"},
           {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself"},
           {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text"},
           {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
           {R"({"allOf":[{"type":"string"},{"minLength":1}]})", "allOf"},
           {R"({"enum":["a"],"minLength":2})", "minLength"},
           {R"({"type":"integer","minimum":3,"maximum":2})", "no integer"},
           {R"({"type":"string","minLength":3,"maxLength":2})", "minLength"},
           {R"({"type":"string","minLength":100000000})", "states"},
           {R"({"properties":[]})", "properties"},
           {R"([])", "expected an object"},
           {R"(false)", "false"}}) {
    try {
      compile_json_schema(vocabulary, Json::parse(schema));
      ADD_FAILURE() << schema;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << schema << ": " << error.what();
    }
  }
}

// Nesting ends at a limit, and a text that comes there can still be finished.
TEST(JsonSchema, DeepNestingComesToAnEnd) {
  const SharedVocabulary vocabulary = test_vocabulary();
  const auto constraint =
      compile_json_schema(vocabulary, Json::parse(R"({"type":"array","items":{"$ref":"#"}})"));
  auto state = constraint->start();
  int depth = 0;
  for (; depth < 1000; ++depth) {
    const auto tokens = allowed_tokens(*state, vocabulary->size);
    if (std::ranges::find(tokens, int64_t{'['}) == tokens.end()) break;
    state->advance('[');
  }
  EXPECT_GT(depth, 50);
  EXPECT_LT(depth, 1000);
  for (; depth > 0; --depth) {
    const auto tokens = allowed_tokens(*state, vocabulary->size);
    ASSERT_NE(std::ranges::find(tokens, int64_t{']'}), tokens.end()) << depth;
    state->advance(']');
  }
  EXPECT_EQ(allowed_tokens(*state, vocabulary->size), vocabulary->end_tokens);
}

// Many alternatives that begin alike, at every level: time and memory stay bounded.
TEST(JsonSchema, AmbiguitySchemasAreBounded) {
  const SharedVocabulary vocabulary = test_vocabulary();
  Json branches = Json::array();
  for (int i = 0; i < 12; ++i)
    branches.push_back(
        Json::parse(fmt::format(R"({{"type":"array","items":{{"$ref":"#"}},"minItems":{}}})", i % 3)));
  Json schema = Json::object();
  schema["anyOf"] = branches;
  const auto start = std::chrono::steady_clock::now();
  const auto constraint = compile_json_schema(vocabulary, schema);
  auto state = constraint->start();
  for (int i = 0; i < 20; ++i) {
    ASSERT_FALSE(allowed_tokens(*state, vocabulary->size).empty());
    state->advance('[');
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
}

TEST(JsonSchema, CallsOfTools) {
  const SharedVocabulary vocabulary = test_vocabulary();
  FramedSchemas framed{"", "\n", "", {}};
  framed.choices.push_back(
      {"<c>{\"name\": \"f\", \"arguments\": ",
       Json::parse(R"({"type":"object","properties":{"x":{"$ref":"#/$defs/i"}},"required":["x"],
                                            "$defs":{"i":{"type":"integer"}}})"),
       "}</c>"});
  framed.choices.push_back(
      {"<c>{\"name\": \"g\", \"arguments\": ", Json::parse(R"({"type":"object"})"), "}</c>"});
  const auto constraint = compile_framed_schemas(vocabulary, framed);
  EXPECT_TRUE(accepts(*constraint, *vocabulary, "<c>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</c>"));
  EXPECT_TRUE(accepts(
      *constraint, *vocabulary,
      "<c>{\"name\": \"g\", \"arguments\": {}}</c>\n<c>{\"name\": \"f\", \"arguments\": {\"x\":2}}</c>"));
  EXPECT_FALSE(accepts(*constraint, *vocabulary, "<c>{\"name\": \"f\", \"arguments\": {}}</c>"));
}

}  // namespace
}  // namespace megatron
