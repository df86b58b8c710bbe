#include "megatron/config/sources/value_parser.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/pipeline_layout.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/yaml.h"
#include "support/error_of.h"

namespace megatron {
namespace {

using testing::error_of;

TEST(Text, Scalars) {
  EXPECT_TRUE(parse_scalar("null").is_null());
  EXPECT_TRUE(parse_scalar("~").is_null());
  EXPECT_EQ(parse_scalar("True"), Json(true));
  EXPECT_TRUE(parse_scalar("12").is_int());
  EXPECT_EQ(parse_scalar("-12"), Json(-12));
  EXPECT_EQ(parse_scalar("1_000"), Json(1000));
  EXPECT_EQ(parse_scalar("1e-4"), Json(1e-4));
  EXPECT_EQ(parse_scalar(".5"), Json(0.5));
  EXPECT_EQ(parse_scalar("5."), Json(5.0));
  EXPECT_TRUE(std::isinf(parse_scalar("-inf").as_double()));
  EXPECT_TRUE(std::isnan(parse_scalar("nan").as_double()));
  for (const char* text :
       {"", "-", "+", "a", "1a", "0x10", "1__0", "_1", "info", "1e", "--1", "e5", "yes", "12 13"})
    EXPECT_EQ(parse_scalar(text), Json(text)) << text;
  EXPECT_TRUE(parse_scalar("99999999999999999999").is_double());
}

TEST(Text, OverrideValues) {
  const auto value = [](std::string_view text) { return parse_override_value(text).value.dump(); };
  EXPECT_EQ(value("3"), "3");
  EXPECT_EQ(value(" a b "), R"("a b")");
  EXPECT_EQ(value("'3'"), R"("3")");
  EXPECT_EQ(value(R"("it's")"), R"("it's")");
  EXPECT_EQ(value(R"('it\'s')"), R"("it's")");
  EXPECT_EQ(value("[1, a, 'b,c', [2], {x: 1}]"), R"([1,"a","b,c",[2],{"x":1}])");
  EXPECT_EQ(value("{a: 1, 'b c': [1,2], d: {e: null}}"), R"({"a":1,"b c":[1,2],"d":{"e":null}})");
  EXPECT_EQ(value("[]"), "[]");
  EXPECT_EQ(value("{}"), "{}");
  EXPECT_EQ(value("[${a.b},2]"), R"(["${a.b}",2])");
  EXPECT_EQ(value(R"(a\,b)"), R"("a,b")");
  EXPECT_EQ(value(R"([a\,b,c])"), R"(["a,b","c"])");
  EXPECT_EQ(value(R"(\3)"), R"("3")");
  for (const char* wrong :
       {"[1", "[1,", "{a", "{a:1", "{a:1,", "{a:1,a:2}", "'x", "\"x", "[1]2", "{1}", "${a"})
    EXPECT_TRUE(parse_override_value(wrong).error) << wrong;
}

TEST(Text, Patterns) {
  const auto value = [](std::string_view text) { return parse_pattern(text).value.dump(); };
  EXPECT_EQ(value("2"), "2");
  EXPECT_EQ(value("[0,1]"), "[0,1]");
  EXPECT_EQ(value("([0]*2+[1]*3)"), "[0,0,1,1,1]");
  EXPECT_EQ(value("([0]*1 + [1]*1) * 2"), "[0,1,0,1]");
  EXPECT_EQ(value("2*[1]"), "[1,1]");
  EXPECT_EQ(value("[]"), "[]");
  EXPECT_EQ(value("2*3"), "6");
  for (const char* wrong : {"", "[", "[0", "[0]*", "[0]+1", "[0]*[1]", "x", "[0]*9999999999",
                            "([0]*100000)*100000", "[0]*-1", "1,2"})
    EXPECT_TRUE(parse_pattern(wrong).error) << wrong;
  EXPECT_TRUE(parse_pattern(std::string(100000, '(')).error);
}

TEST(Text, YamlKeepsTypesAndLines) {
  const auto entries =
      read_yaml("a:\n  x: 1\n  y: '1'\n  z: [1, b, {c: 2.5}]\nmixed: t\nenv_vars: {K: v}\n", "f");
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].name, "a.x");
  EXPECT_TRUE(entries[0].value.is_int());
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_TRUE(entries[1].value.is_string());
  EXPECT_EQ(entries[2].value.dump(), R"([1,"b",{"c":2.5}])");
  EXPECT_EQ(entries[3].name, "mixed");
  EXPECT_EQ(entries[4].value.dump(), R"({"K":"v"})");
  EXPECT_EQ(error_of([] { read_yaml("a: [1\n", "f"); }).find("f:"), 0u);
  EXPECT_EQ(error_of([] { read_yaml("a: {? [x] : 1}\n", "f"); }), "f:1: a key must be a word");
  EXPECT_EQ(error_of([] { read_yaml("a: {<<: 3}\n", "f"); }), "f:1: << merges mappings only");
  EXPECT_EQ(error_of([] { parse_yaml(std::string(5000, '['), "f"); }).find("f:"), 0u);
}

TEST(PipelineLayout, ReadsTheLanguage) {
  const auto shape = [](std::string_view text) {
    std::string result;
    for (const auto& stage : parse_pipeline_layout(text)) {
      if (!result.empty()) result += "|";
      for (LayerKind item : stage) result += static_cast<char>(item);
    }
    return result;
  };
  EXPECT_EQ(shape("Et|L"), "Et|L");
  EXPECT_EQ(shape("Et*3|(tt|)*2,m|L"), "Ettt|tt|tt|m|L");
  EXPECT_EQ(parse_pipeline_layout("Et*3|(tt|)*29,m|L").size(), 32u);
  EXPECT_EQ(parse_pipeline_layout("E||L").size(), 3u);
  EXPECT_EQ(shape("E(tt|t|tt)*2|L"), "Ett|t|tttt|t|tt|L");
  EXPECT_EQ(shape("Et,(tt|)*2L"), "Ettt|tt|L");
  EXPECT_EQ(error_of([] { parse_pipeline_layout("Ex|L"); }),
            "pipeline layout: 'x' is not one of E (embedding), t (layer), m (MTP layer), L (loss) and |");
  for (const char* wrong : {"(t", "t)", "()*2", "(t)", "t*", "*2", "((t)*2)*2", "t*99999999999",
                            "(t*9|)*999999", "Et L", "Et()*2L", "t*2*2", "t*99999999999999999999"})
    EXPECT_NE(error_of([&] { parse_pipeline_layout(wrong); }), "no error") << wrong;
}

TEST(PipelineLayout, ChecksTheModel) {
  const auto check = [](std::string_view text, int64_t pp, int64_t layers, int64_t mtp) {
    return check_pipeline_layout(parse_pipeline_layout(text), pp, layers, mtp);
  };
  EXPECT_EQ(check("Ett|ttL", 2, 4, 0), "");
  EXPECT_EQ(check("Ett|tt|tt|ttL", 2, 8, 0), "");
  EXPECT_EQ(check("Ett|ttmL", 2, 4, 1), "");
  EXPECT_EQ(check("Ett|ttL", 3, 4, 0), "its 2 stages cannot be dealt out to 3 pipeline ranks");
  EXPECT_EQ(check("tt|ttL", 2, 4, 0), "it must begin with the only E");
  EXPECT_EQ(check("Ett|tt", 2, 4, 0), "it must end with the only L");
  EXPECT_EQ(check("Ett|ttL", 2, 5, 0), "it has 4 layers (t) and the model 5");
  EXPECT_EQ(check("Ett|ttL", 2, 4, 1), "it has 0 MTP layers (m) and the model 1");
  EXPECT_EQ(check("Etm|tL", 2, 2, 1), "no layer (t) may follow an MTP layer (m)");
  EXPECT_EQ(check("Ett|m|mL|", 2, 2, 2), "all MTP layers (m) must be in one stage");
  EXPECT_EQ(check("EtE|tL", 2, 2, 0), "it must begin with the only E");
  EXPECT_EQ(check("Et|tm|mL", 3, 2, 2), "all MTP layers (m) must be in one stage");
  EXPECT_NE(check("|", 2, 0, 0), "");
  EXPECT_EQ(check("Ett|m||L", 2, 2, 1), "MTP layers (m) must be in a rank's last chunk");
}

TEST(HybridPattern, ReadsSegmentsAndMtpLayers) {
  const HybridPattern pattern = parse_hybrid_pattern("M-M-|M-M*-/MM/MM");
  EXPECT_EQ(pattern.layers, "M-M-M-M*-");
  EXPECT_EQ(pattern.segments, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(pattern.mtp_layers, "MM");
  EXPECT_EQ(pattern.mtp_depths, 2);
  EXPECT_EQ(parse_hybrid_pattern("").layers, "");
  for (const char* wrong : {"MX", "M/", "M/M/MM", "*D", "M/M|M"})
    EXPECT_NE(error_of([&] { parse_hybrid_pattern(wrong); }), "no error") << wrong;
}

}  // namespace
}  // namespace megatron
