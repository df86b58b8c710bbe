#include "megatron/base/json.h"

#include <gtest/gtest.h>

#include <random>

#include <cmath>
#include <limits>

#include "support/error_of.h"

namespace megatron {
namespace {

using testing::error_of;

TEST(Json, ReadsEveryKind) {
  Json json = Json::parse(
      R"({"n": null, "t": true, "i": -7, "d": 0.5, "s": "a\nbé\u00e9", "a": [1, [], {}], "o": {"x": 1}})");
  EXPECT_TRUE(json.at("n").is_null());
  EXPECT_TRUE(json.at("t").as_bool());
  EXPECT_EQ(json.at("i").as_int(), -7);
  EXPECT_EQ(json.at("d").as_double(), 0.5);
  EXPECT_EQ(json.at("s").as_string(), "a\nbéé");
  EXPECT_EQ(json.at("a").size(), 3u);
  EXPECT_EQ(json.at("a")[0].as_int(), 1);
  EXPECT_EQ(json.at("o").at("x").as_int(), 1);
  EXPECT_EQ(json.find("absent"), nullptr);
  EXPECT_FALSE(Json(1).contains("x"));
}

TEST(Json, KeepsKeyOrder) {
  EXPECT_EQ(Json::parse(R"({"z":1,"a":{"y":2,"b":3},"m":[]})").dump(), R"({"z":1,"a":{"y":2,"b":3},"m":[]})");
}

TEST(Json, NumbersRoundTrip) {
  for (double value : {0.1, 1e-300, 1.7976931348623157e308, 5e-324, -0.0, 3e-4, 1e22, 100.0}) {
    Json back = Json::parse(Json(value).dump());
    ASSERT_TRUE(back.is_double()) << value;
    EXPECT_EQ(back.as_double(), value);
    EXPECT_EQ(std::signbit(back.as_double()), std::signbit(value));
  }
  EXPECT_EQ(Json(0.1).dump(), "0.1");
  EXPECT_EQ(Json(100.0).dump(), "100.0");
  for (int64_t value : {INT64_MAX, INT64_MIN, int64_t{0}}) {
    Json back = Json::parse(Json(value).dump());
    ASSERT_TRUE(back.is_int());
    EXPECT_EQ(back.as_int(), value);
  }
}

TEST(Json, IntegersBeyondInt64AreDoubles) {
  Json big = Json::parse("[9223372036854775808, 100000000000000000000, -9223372036854775809]");
  EXPECT_TRUE(big[0].is_double());
  EXPECT_EQ(big[0].as_double(), 0x1p63);
  EXPECT_EQ(big[1].as_double(), 1e20);
  EXPECT_EQ(big[2].as_double(), -0x1p63);
  EXPECT_EQ(error_of([&] { big[1].as_int(); }), "JSON: wanted an integer, found 1e+20");
}

TEST(Json, NonFiniteIsNull) {
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).dump(), "null");
  Json python = Json::parse(R"({"limit": [0.0, Infinity, -Infinity, NaN], "text": "NaN \" Infinity"})");
  EXPECT_EQ(python.dump(), R"({"limit":[0.0,null,null,null],"text":"NaN \" Infinity"})");
}

TEST(Json, StringsAreEscaped) {
  EXPECT_EQ(Json("a\"b\\c\n\x01é").dump(), R"("a\"b\\c\n\u0001é")");
  EXPECT_EQ(Json(std::string("bad \xff")).dump(), "\"bad \xEF\xBF\xBD\"");
  EXPECT_EQ(Json::parse(R"("\ud83d\ude00")").as_string(), "\xF0\x9F\x98\x80");
}

TEST(Json, Indents) {
  Json json;
  json["a"] = 1;
  json["b"].push_back(true);
  json["b"].push_back("x");
  json["c"] = Json::object();
  json["d"] = Json::array();
  EXPECT_EQ(json.dump(2),
            "{\n  \"a\": 1,\n  \"b\": [\n    true,\n    \"x\"\n  ],\n  \"c\": {},\n  \"d\": []\n}");
}

TEST(Json, BuildsAndOverwrites) {
  Json json;
  json["k"] = 1;
  json["k"] = 2;
  EXPECT_EQ(json.size(), 1u);
  EXPECT_EQ(json.at("k").as_int(), 2);
  json.as_object()[0].second = "x";
  EXPECT_EQ(json, Json::parse(R"({"k":"x"})"));
}

TEST(Json, NumbersCompareByValue) {
  EXPECT_EQ(Json(1), Json(1.0));
  EXPECT_FALSE(Json(1) == Json(2.0));
  EXPECT_FALSE(Json(1) == Json("1"));
  EXPECT_FALSE(Json(true) == Json(1));
  EXPECT_EQ(Json(3.0).as_int(), 3);
  EXPECT_EQ(Json(3).as_double(), 3.0);
}

TEST(Json, ErrorsNameTypesAndPlace) {
  EXPECT_EQ(error_of([] { Json("x").as_int(); }), "JSON: wanted an integer, found a string");
  EXPECT_EQ(error_of([] { Json(1).as_object(); }), "JSON: wanted an object, found an integer");
  EXPECT_EQ(error_of([] { Json::object().at("q"); }), "JSON: the key \"q\" is missing");
  EXPECT_EQ(error_of([] { Json::array()[3]; }), "JSON: index 3 in an array of 0");
  EXPECT_EQ(error_of([] { Json(1.5).as_int(); }), "JSON: wanted an integer, found 1.5");
  EXPECT_EQ(error_of([] { Json::parse(R"({"a":1,"a":2})", "f.json"); }),
            "f.json: the key \"a\" stands twice in one object: remove one");
  for (const char* bad : {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"\\x\"", "\"\xff\"", "1e999"}) {
    std::string message = error_of([&] { Json::parse(bad, "f.json"); });
    EXPECT_EQ(message.find("f.json: malformed JSON near byte "), 0u) << bad << " gave " << message;
  }
  EXPECT_EQ(error_of([] { Json::read("/nonexistent/x.json"); }),
            "cannot open /nonexistent/x.json: No such file or directory");
  EXPECT_EQ(error_of([] { Json::read("/"); }), "cannot read /: Is a directory");
}

// Plain texts are read by a reader of our own, those with a byte-order mark by the library: both say the
// same.
TEST(Json, BothReadersAgree) {
  const std::string_view pieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"a\"",
                                     "\"b\"",
                                     "\"",
                                     "\\",
                                     "\\u00e9",
                                     "\\ud83d",
                                     "\\ude00",
                                     "\\n",
                                     "1",
                                     "-0",
                                     "0.5",
                                     "1e3",
                                     "2E-2",
                                     "01",
                                     "1.",
                                     "-",
                                     "true",
                                     "false",
                                     "null",
                                     "nul",
                                     " ",
                                     "\n",
                                     "\t",
                                     "\u00e9",
                                     "\u4f60",
                                     "\x80",
                                     "\xed\xa0",
                                     "1e999",
                                     "\x01",
                                     "\\u0000",
                                     "\\x",
                                     "\"k\":1",
                                     "{}",
                                     "[]",
                                     "{\"a\":",
                                     "123456789012345678",
                                     "1234567890123456789",
                                     "18446744073709551615",
                                     "99999999999999999999",
                                     "{\"x\":[1,2,{\"y\":\"z\"}],\"w\":null}"};
  const auto read = [](const std::string& text) -> std::string {
    try {
      return Json::parse(text).dump();
    } catch (const Error&) {
      return "refused";
    }
  };
  std::mt19937 random(5);
  int read_well = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string text;
    const size_t open = round % 3;  // inside an array, a string, or nothing
    for (size_t i = random() % 7; i > 0; --i) {
      text += pieces[random() % std::size(pieces)];
      if (open == 1 && i > 1) text += ",";
    }
    if (open == 1) text = "[" + text + "]";
    if (open == 2) text = "\"" + text + "\"";
    const std::string result = read(text);
    ASSERT_EQ(result, read("\xEF\xBB\xBF" + text)) << text;
    read_well += result != "refused";
  }
  EXPECT_GT(read_well, 3000);
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_EQ(Json::parse(many + "\"x\":1}").size(), 101u);
  EXPECT_THROW(Json::parse(many + "\"57\":1}"), Error);
}

TEST(Json, DeepNestingIsRefusedNotACrash) {
  std::string deep(100000, '[');
  EXPECT_EQ(error_of([&] { Json::parse(deep, "deep"); }), "deep: nested deeper than 512 levels");
}

}  // namespace
}  // namespace megatron
