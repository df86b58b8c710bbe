#include "megatron/base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

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
  EXPECT_EQ(message_of([&] { big[1].as_int(); }), "JSON: wanted an integer, found 1e+20");
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
  EXPECT_EQ(message_of([] { Json("x").as_int(); }), "JSON: wanted an integer, found a string");
  EXPECT_EQ(message_of([] { Json(1).as_object(); }), "JSON: wanted an object, found an integer");
  EXPECT_EQ(message_of([] { Json::object().at("q"); }), "JSON: the key \"q\" is missing");
  EXPECT_EQ(message_of([] { Json::array()[3]; }), "JSON: index 3 in an array of 0");
  EXPECT_EQ(message_of([] { Json(1.5).as_int(); }), "JSON: wanted an integer, found 1.5");
  EXPECT_EQ(message_of([] { Json::parse(R"({"a":1,"a":2})", "f.json"); }),
            "f.json: the key \"a\" stands twice in one object: remove one");
  for (const char* bad : {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"\\x\"", "\"\xff\"", "1e999"}) {
    std::string message = message_of([&] { Json::parse(bad, "f.json"); });
    EXPECT_EQ(message.find("f.json: malformed JSON near byte "), 0u) << bad << " gave " << message;
  }
  EXPECT_EQ(message_of([] { Json::read("/nonexistent/x.json"); }),
            "cannot open /nonexistent/x.json: No such file or directory");
  EXPECT_EQ(message_of([] { Json::read("/"); }), "cannot read /: Is a directory");
}

TEST(Json, DeepNestingIsRefusedNotACrash) {
  std::string deep(100000, '[');
  EXPECT_EQ(message_of([&] { Json::parse(deep, "deep"); }), "deep: nested deeper than 512 levels");
}

}  // namespace
}  // namespace megatron
