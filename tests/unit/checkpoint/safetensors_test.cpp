#include "megatron/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "megatron/base/json.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_text;

// A file with this header, its true length before it, and this many bytes of data (0, 1, 2, …).
std::string make_file(const std::string& header, size_t data_bytes) {
  uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

std::string refusal(const std::string& contents) {
  TempDir dir;
  write_text(dir / "x.safetensors", contents);
  try {
    SafetensorsFile file(dir / "x.safetensors");
  } catch (const ConfigError& error) {
    const std::string start = dir / "x.safetensors" + " is not a sound safetensors file:\n  ",
                      what = error.what();
    EXPECT_EQ(what.substr(0, start.size()), start);
    return what.substr(std::min(what.size(), start.size()));
  }
  return "no error";
}

TEST(SafetensorsFile, ReadsEveryDType) {
  TempDir dir;
  std::string header = R"({"__metadata__":{"format":"pt"},)";
  const std::vector<std::tuple<std::string, int, DType>> kinds = {
      {"F64", 8, DType::F64},   {"F32", 4, DType::F32},        {"BF16", 2, DType::BF16},
      {"F16", 2, DType::F16},   {"F8_E4M3", 1, DType::F8E4M3}, {"F8_E5M2", 1, DType::F8E5M2},
      {"I64", 8, DType::I64},   {"I32", 4, DType::I32},        {"I16", 2, DType::I16},
      {"I8", 1, DType::I8},     {"U8", 1, DType::U8},          {"BOOL", 1, DType::Bool},
      {"F8_E8M0", 1, DType::U8}};
  size_t end = 0;
  for (const auto& [name, size, dtype] : kinds) {
    header += fmt::format(R"("{}":{{"dtype":"{}","shape":[2,1],"data_offsets":[{},{}]}},)", name, name, end,
                          end + 2 * size);
    end += 2 * size;
  }
  header.back() = '}';
  std::string contents = make_file(header, end);
  write_text(dir / "x", contents);
  SafetensorsFile file(dir / "x");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.entries().size(), kinds.size());
  const char* data = contents.data() + 8 + header.size();
  for (const auto& [name, size, dtype] : kinds) {
    Tensor tensor = file.tensor(name);
    EXPECT_EQ(tensor.dtype(), dtype) << name;
    EXPECT_EQ(tensor.shape(), (Shape{2, 1}));
    EXPECT_EQ(std::memcmp(tensor.raw(), data, tensor.bytes()), 0) << name;
    data += 2 * size;
  }
}

TEST(SafetensorsFile, UnsignedIntegersBecomeWiderSignedOnes) {
  TempDir dir;
  std::string text = make_file(R"({"a":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"U32","shape":[1],"data_offsets":[4,8]},)"
                               R"("c":{"dtype":"U64","shape":[1],"data_offsets":[8,16]},)"
                               R"("d":{"dtype":"U64","shape":[1],"data_offsets":[16,24]}})",
                               0);
  text += std::string("\xff\xff\x01\x00", 4) + "\xff\xff\xff\xff" + std::string("\x05\0\0\0\0\0\0\x00", 8) +
          std::string(8, '\xff');
  write_text(dir / "x", text);
  SafetensorsFile file(dir / "x");
  EXPECT_EQ(file.at("a").stored, "U16");
  EXPECT_EQ(file.tensor("a").data<int32_t>()[0], 65535);
  EXPECT_EQ(file.tensor("a").data<int32_t>()[1], 1);
  EXPECT_EQ(file.tensor("b").data<int64_t>()[0], 4294967295);
  EXPECT_EQ(file.tensor("c").data<int64_t>()[0], 5);
  EXPECT_NE(error_of([&] { file.tensor("d"); }).find("18446744073709551615"), std::string::npos);
}

TEST(SafetensorsFile, TensorsAreViewsThatKeepTheMapping) {
  TempDir dir;
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  Tensor source = Tensor::wrap(values.data(), {3, 2}, DType::F32);
  write_safetensors(dir / "x", {{"w", source}});
  Tensor first, second;
  {
    SafetensorsFile file(dir / "x");
    first = file.tensor("w");
    second = file.tensor("w");
  }
  EXPECT_EQ(first.raw(), second.raw());
  std::filesystem::remove(dir / "x");
  Tensor row = first.slice(0, 2, 3);
  EXPECT_EQ(row.data<float>()[0], 5);
  EXPECT_EQ(row.data<float>()[1], 6);
}

TEST(SafetensorsFile, CopiesWhatIsNotAligned) {
  TempDir dir;
  std::string text = make_file(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("b":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})",
                               1);
  float value = 2.5f;
  text.append(reinterpret_cast<const char*>(&value), 4);
  write_text(dir / "x", text);
  Tensor tensor = SafetensorsFile(dir / "x").tensor("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 4, 0u);
  EXPECT_EQ(tensor.rank(), 0);
  EXPECT_EQ(tensor.data<float>()[0], 2.5f);
}

TEST(SafetensorsFile, UnknownNameGetsTheNearest) {
  TempDir dir;
  float value = 1;
  write_safetensors(dir / "x", {{"model.norm.weight", Tensor::wrap(&value, {1}, DType::F32)}});
  SafetensorsFile file(dir / "x");
  EXPECT_FALSE(file.contains("x"));
  EXPECT_EQ(error_of([&] { file.tensor("model.norm.wieght"); }),
            dir / "x" + " has no tensor 'model.norm.wieght': did you mean 'model.norm.weight'?");
}

TEST(SafetensorsFile, RefusesShortFiles) {
  EXPECT_EQ(refusal(""), "it has 0 bytes, too few for a header: it was cut short");
  EXPECT_EQ(refusal("1234567"), "it has 7 bytes, too few for a header: it was cut short");
  EXPECT_EQ(refusal(make_file("{}", 0).substr(0, 9)),
            "it announces a header of 2 bytes, but has 1: it was cut short");
  EXPECT_EQ(refusal(std::string(16, '\xff')),
            "it announces a header of 18446744073709551615 bytes, beyond the limit of 100000000");
}

TEST(SafetensorsFile, RefusesMalformedHeaders) {
  EXPECT_EQ(refusal(make_file("[]", 0)), "its header does not begin with '{'");
  EXPECT_NE(refusal(make_file(R"({"a":)", 0)).find("malformed JSON"), std::string::npos);
  EXPECT_NE(refusal(make_file("{\"\xff\xfe\":1}", 0)).find("malformed JSON"), std::string::npos);
  EXPECT_NE(refusal(make_file(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                              R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                              0))
                .find("\"a\" stands twice"),
            std::string::npos);
  std::string deep = R"({"a":)";
  deep += std::string(5000, '[');
  EXPECT_NE(refusal(make_file(deep, 0)).find("nested deeper"), std::string::npos);
}

TEST(SafetensorsFile, ListsEverythingThatIsWrong) {
  const std::string message =
      refusal(make_file(R"({"__metadata__":{"format":1},)"
                        R"("a":{"dtype":"F12","shape":[1],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]},)"
                        R"("c":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},)"
                        R"("d":{"dtype":"F32","shape":[1],"data_offsets":[4,8,9]},)"
                        R"("e":{"dtype":"F32","shape":[1],"data_offsets":[8,4]},)"
                        R"("f":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                        R"("g":{"shape":[4],"data_offsets":[0,16]},)"
                        R"("h":7,)"
                        R"("i":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]},)"
                        R"("j":{"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,4]},)"
                        R"("k":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]},)"
                        R"("l":{"dtype":"F32","shape":[0.5],"data_offsets":[0,4]}})",
                        8));
  EXPECT_EQ(message,
            "__metadata__: format is an integer, not a string\n"
            "  a: unknown dtype F12\n"
            "  b: its shape is not a list of sizes\n"
            "  c: F32 [2] does not fill its 4 bytes\n"
            "  d: its data_offsets are not two positions\n"
            "  e: its data ends at 4, before its begin at 8\n"
            "  f: its data ends at 16, but the file has 8 bytes of data: it was cut short\n"
            "  g: it has no dtype\n"
            "  h: it has no dtype\n"
            "  i: it has 7 dimensions, more than 6\n"
            "  j: F32 [9223372036854775807, 2] does not fill its 4 bytes\n"
            "  k: F32 [4611686018427387905] does not fill its 4 bytes\n"
            "  l: its shape is not a list of sizes");
}

TEST(SafetensorsFile, RefusesOverlapsAndHoles) {
  EXPECT_EQ(refusal(make_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                              8)),
            "a and b overlap at byte 4 of the data");
  EXPECT_EQ(refusal(make_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                              13)),
            "bytes 4 to 8 of the data, before b, belong to no tensor\n"
            "  the last 1 bytes of the data belong to no tensor");
}

TEST(SafetensorsFile, EveryTruncationIsRefused) {
  TempDir dir;
  std::vector<float> values(5);
  write_safetensors(dir / "x", {{"w", Tensor::wrap(values.data(), {5}, DType::F32)}});
  const std::string whole = read_text(dir / "x");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_text(dir / "cut", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile(dir / "cut"), ConfigError) << size;
  }
  EXPECT_NO_THROW(SafetensorsFile(dir / "x"));
}

TEST(SafetensorsWriter, LaysOutAsTheReferenceLibraryDoes) {
  for (const char* name : {"elementwise", "rope", "fp8_bf16", "moe_router", "attention"}) {
    const std::string path = testing::golden_path("numerics", std::string(name) + ".safetensors");
    SafetensorsFile golden(path);
    TempDir dir;
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const std::string& tensor : golden.names()) tensors.emplace_back(tensor, golden.tensor(tensor));
    std::reverse(tensors.begin(), tensors.end());
    write_safetensors(dir / "x", tensors, golden.metadata());
    EXPECT_TRUE(read_text(dir / "x") == read_text(path)) << name;
  }
}

TEST(SafetensorsWriter, TakesPiecesInAnyOrder) {
  TempDir dir;
  std::vector<int32_t> values = {1, 2, 3, 4};
  uint8_t flag = 9;
  SafetensorsWriter writer(dir / "x",
                           {{"b", DType::U8, {}}, {"a", DType::I32, {2, 2}}, {"none", DType::F32, {0}}});
  auto bytes = std::as_bytes(std::span(values));
  writer.write("b", Tensor::wrap(&flag, {}, DType::U8));
  writer.write("a", 8, bytes.subspan(8));
  EXPECT_NE(error_of([&] { writer.commit(); }).find("8 bytes of 'a' were written, it has 16"),
            std::string::npos);
  writer.write("a", 0, bytes.first(8));
  EXPECT_FALSE(std::filesystem::exists(dir / "x"));
  writer.commit();
  SafetensorsFile file(dir / "x");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(file.tensor("a").data<int32_t>()[i], values[i]);
  EXPECT_EQ(file.tensor("b").data<uint8_t>()[0], 9);
  EXPECT_EQ(file.tensor("none").numel(), 0);
}

TEST(SafetensorsWriter, RefusesMistakes) {
  TempDir dir;
  std::vector<float> values(6);
  Tensor tensor = Tensor::wrap(values.data(), {2, 3}, DType::F32);
  EXPECT_NE(error_of([&] {
              write_safetensors(dir / "x", {{"a", tensor}, {"a", tensor}});
            }).find("the name 'a'"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              write_safetensors(dir / "x", {{"a", tensor.transpose(0, 1)}});
            }).find("contiguous"),
            std::string::npos);
  SafetensorsWriter writer(dir / "x", {{"a", DType::F32, {2, 3}}});
  EXPECT_NE(error_of([&] { writer.write("b", tensor); }).find("not announced"), std::string::npos);
  EXPECT_NE(error_of([&] { writer.write("a", tensor.view({6})); }).find("announced as fp32[2, 3]"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { writer.write("a", 20, std::as_bytes(std::span(values)).first(8)); }).find("beyond"),
      std::string::npos);
}

TEST(Golden, ComparisonNamesTheWorstElement) {
  RankContext ctx;
  Tensor expected = ctx.from_vector<double>({1, 2, 3, 4, 5, NAN}, {2, 3});
  Tensor actual = ctx.from_vector<double>({1, 2, 3, 4.5, 5, NAN}, {2, 3});
  EXPECT_TRUE(testing::is_close(ctx, "y", expected, expected, testing::kExact));
  EXPECT_TRUE(testing::is_close(ctx, "y", actual, expected, {0.5, 0, 0}));
  EXPECT_TRUE(testing::is_close(ctx, "y", actual, expected, {0, 0.125, 0}));
  EXPECT_TRUE(testing::is_close(ctx, "y", actual, expected, {0, 0, 0.1}));
  EXPECT_EQ(std::string(testing::is_close(ctx, "y", actual, expected, {0.4, 0, 0}).message()),
            "y [2, 3]: 1 of 6 elements are off, worst [1, 0]: 4.5, expected 4, difference 0.5 (largest "
            "expected 5)");
  Tensor infinite = ctx.from_vector<double>({1, 2, 3, INFINITY, 5, NAN}, {2, 3});
  EXPECT_FALSE(testing::is_close(ctx, "y", infinite, expected, {9, 9, 9}));
  EXPECT_FALSE(testing::is_close(ctx, "y", Tensor(), expected, {9, 9, 9}));
}

}  // namespace
}  // namespace megatron
