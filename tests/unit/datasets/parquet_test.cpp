#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"
#include "megatron/datasets/compression/snappy.h"
#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/parquet/parquet_writer.h"
#include "megatron/datasets/parquet/thrift.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// Whether the build has the libraries of these files.
bool has_codec(std::string_view name) {
  try {
    if (name == "gzip") make_gzip_decompressor("x");
    if (name == "zstd") make_zstd_decompressor("x");
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Files of 300 rows that pyarrow 26 wrote: every codec, both page versions, dictionaries and plain pages,
// nulls.
TEST(Parquet, ReadsWhatArrowWrites) {
  const std::filesystem::path folder = MEGATRON_SOURCE_DIR "/tests/unit/datasets/parquet_files";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string name = entry.path().filename().string();
    ++files;
    if (!has_codec(name.substr(0, name.find('_')))) continue;
    const ParquetFile file(entry.path().string());
    ASSERT_EQ(file.rows(), 300);
    ASSERT_EQ(file.row_groups(), 3);
    int64_t row = 0;
    for (int64_t group = 0; group < file.row_groups(); ++group) {
      const auto text = file.strings(group, "text"), full = file.strings(group, "full");
      const auto ids = file.integer_lists(group, "ids"), small = file.integer_lists(group, "small");
      const auto numbers = file.integers(group, "num");
      for (size_t i = 0; i < text.size(); ++i, ++row) {
        std::string expected = fmt::format("row {} ", row);
        for (int64_t k = 0; k < row % 5; ++k) expected += "é";
        if (row % 7 == 3) {
          EXPECT_FALSE(text[i]);
        } else {
          EXPECT_EQ(text[i], expected);
        }
        EXPECT_EQ(full[i], fmt::format("value {}", row % 11));
        std::vector<int64_t> list;
        for (int64_t j = 0; j < row % 6 && row % 13 != 5; ++j) list.push_back(j * row);
        EXPECT_EQ(ids[i], list);
        EXPECT_EQ(small[i], row % 3 ? (std::vector<int64_t>{row, row + 1}) : std::vector<int64_t>{});
        EXPECT_EQ(numbers[i], row % 10 == 9 ? std::nullopt : std::optional(row * row - 5));
      }
    }
    EXPECT_EQ(row, 300);
    EXPECT_NE(error_of([&] { file.strings(0, "ids"); }).find("no column of strings"), std::string::npos);
    EXPECT_NE(error_of([&] { file.strings(0, "texts"); }).find("text"), std::string::npos);
  }
  EXPECT_EQ(files, 12);
}

TEST(Parquet, ThereAndBack) {
  TempDir dir;
  ParquetWriter::Texts texts;
  ParquetWriter::Lists tokens, wide;
  for (int i = 0; i < 5000; ++i) {
    texts.push_back(std::string(static_cast<size_t>(i % 700), static_cast<char>('a' + i % 26)));
    tokens.emplace_back();
    for (int j = 0; j < i % 100; ++j) tokens.back().push_back(i * 100 + j);
    wide.push_back({int64_t{1} << 40, -i});
  }
  for (ParquetCodec codec :
       {ParquetCodec::none, ParquetCodec::snappy, ParquetCodec::gzip, ParquetCodec::zstd}) {
    if (codec == ParquetCodec::gzip && !has_codec("gzip")) continue;
    if (codec == ParquetCodec::zstd && !has_codec("zstd")) continue;
    const std::string path = dir / "x.parquet";
    {
      ParquetWriter writer(
          path, {{"text"}, {"tokens", ParquetKind::int32_list}, {"wide", ParquetKind::int64_list}}, codec);
      const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> columns = {texts, tokens,
                                                                                             wide};
      writer.write_rows(columns);
      writer.write_rows(columns);
      writer.commit();
    }
    const ParquetFile file(path);
    ASSERT_EQ(file.rows(), 10000);
    for (int64_t group = 0; group < 2; ++group) {
      const auto read = file.strings(group, "text");
      for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(read[i], texts[i]);
      EXPECT_EQ(file.integer_lists(group, "tokens"), tokens);
      EXPECT_EQ(file.integer_lists(group, "wide"), wide);
    }
  }
}

TEST(Parquet, WriterRefusesWhatDoesNotFit) {
  TempDir dir;
  ParquetWriter writer(dir / "x.parquet", {{"tokens", ParquetKind::int32_list}});
  const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> wide = {
      ParquetWriter::Lists{{int64_t{1} << 40}}};
  EXPECT_NE(error_of([&] { writer.write_rows(wide); }).find("does not fit"), std::string::npos);
  EXPECT_THROW(writer.write_rows({}), Error);
}

TEST(Snappy, ThereAndBack) {
  for (size_t n : {0, 1, 3, 4, 59, 60, 61, 64, 65, 300, 70000, 200000}) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += static_cast<char>(i * i % 7 == 0 ? i >> 4 : i % 11);
    const std::string packed = snappy_compress(std::as_bytes(std::span(text)));
    EXPECT_EQ(snappy_decompress(std::as_bytes(std::span(packed)), n, "x"), text);
    EXPECT_THROW(snappy_decompress(std::as_bytes(std::span(packed)), n + 1, "x"), Error);
  }
  // Overlapping copies repeat, and distances that leave the data are refused.
  const std::string repeated("\x06\x00q\x12\x01\x00", 6), outside("\x06\x00q\x12\x02\x00", 6);
  EXPECT_EQ(snappy_decompress(std::as_bytes(std::span(repeated)), 6, "x"), "qqqqqq");
  EXPECT_THROW(snappy_decompress(std::as_bytes(std::span(outside)), 6, "x"), Error);
}

TEST(Thrift, ListsThatLieAreRefused) {
  const std::string liar("\x19\xf5\xff\xff\xff\xff\x0f\x02", 8);
  std::string_view text = liar;
  EXPECT_NE(error_of([&] { parse_thrift(text, "x"); }).find("leaves its header"), std::string::npos);
  std::string deep(5000, '\x1c');
  text = deep;
  EXPECT_NE(error_of([&] { parse_thrift(text, "x"); }).find("nested"), std::string::npos);
}

}  // namespace
}  // namespace megatron::testing
