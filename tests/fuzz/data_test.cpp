// Spoiled data files: an Error or a value, never a crash, a read out of bounds or another exception.
#include <filesystem>

#include "fuzz/feed.h"
#include "fuzz/parquet_columns.h"
#include "megatron/datasets/compression/snappy.h"
#include "megatron/datasets/index/index_array.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/parquet/parquet_writer.h"
#include "megatron/datasets/text/byte_source.h"
#include "megatron/datasets/text/json_fields.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

const std::vector<std::string> kNumbers = {std::string(1, '\0'),
                                           std::string(8, '\0'),
                                           std::string(8, '\xff'),
                                           std::string(4, '\x7f'),
                                           "\x01",
                                           std::string("\xff\xff\xff\x7f"),
                                           std::string("\x00\x00\x00\x80", 4),
                                           "\x10\x27"};

// A new file: one that is cut and written again is flushed to the disk when it is closed.
void replace(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);
  write_text(path, text);
}

TEST(FuzzData, TokenIndices) {
  TempDir dir;
  IndexedWriter writer(dir / "good", TokenType::u16);
  for (int64_t d = 0; d < 4; ++d) {
    for (int64_t s = 0; s <= d % 2; ++s)
      writer.add_sequence(std::vector<int64_t>(static_cast<size_t>(3 + d), d));
    writer.end_document();
  }
  writer.commit();
  write_text(dir / "x.bin", read_text(dir / "good.bin"));
  fuzz(Mutator(21, {read_text(dir / "good.idx")}, kNumbers), 4000, [&](const std::string& text) {
    replace(dir / "x.idx", text);
    const IndexedDataset dataset(dir / "x");
    // Reading is safe before verify() has seen the entries.
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < dataset.sequences(); ++i) {
      tokens.resize(std::clamp<size_t>(static_cast<size_t>(std::max(0, dataset.lengths()[i])), 0, 1000));
      try {
        dataset.read(i, 0, tokens);
      } catch (const Error&) {
      }
    }
    dataset.verify();
  });
}

TEST(FuzzData, ArrayFiles) {
  TempDir dir;
  {
    IndexArrayBuilder builder(dir / "good.npy", IndexType::i4, {5, 2});
    for (int32_t& value : builder.values<int32_t>()) value = 7;
    builder.finish();
  }
  fuzz(Mutator(22, {read_text(dir / "good.npy")},
               {"'descr':", "(5, 2)", "(99999999999999999999,)", "<i8", "True", "("}),
       3000, [&](const std::string& text) {
         replace(dir / "x.npy", text);
         const IndexArray array = open_npy(dir / "x.npy");
         int64_t sum = 0;
         for (int64_t i = 0; i < array.size(); ++i) sum += array[i];
         require(sum != 1, "no such sum");
       });
}

TEST(FuzzData, Parquet) {
  TempDir dir;
  std::vector<std::string> texts;
  for (ParquetCodec codec : {ParquetCodec::none, ParquetCodec::snappy}) {
    ParquetWriter writer(dir / "good.parquet", {{"text"}, {"ids", ParquetKind::int32_list}}, codec);
    const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> columns = {
        ParquetWriter::Texts{"one", "two two two two", ""}, ParquetWriter::Lists{{1, 2, 3}, {}, {4}}};
    writer.write_rows(columns);
    writer.commit();
    texts.push_back(read_text(dir / "good.parquet"));
  }
  // Files of another writer hold dictionaries, nulls and both kinds of pages.
  for (const char* name : {"none_v1_dictionary", "snappy_v2_dictionary", "snappy_v1_plain"})
    texts.push_back(
        read_text(fmt::format("{}/tests/unit/datasets/parquet_files/{}.parquet", MEGATRON_SOURCE_DIR, name)));
  fuzz(Mutator(23, texts, kNumbers), 3000, [&](const std::string& text) {
    replace(dir / "x.parquet", text);
    read_all_columns(ParquetFile(dir / "x.parquet"));
  });
}

TEST(FuzzData, Snappy) {
  std::string plain;
  for (int i = 0; i < 400; ++i) plain += static_cast<char>('a' + i * i % 13);
  fuzz(
      Mutator(24, {snappy_compress(std::as_bytes(std::span(plain)))}, kNumbers), 20000,
      [&](const std::string& text) { snappy_decompress(std::as_bytes(std::span(text)), plain.size(), "x"); });
}

TEST(FuzzData, JsonLinesAndArrays) {
  const std::vector<std::string> texts = {
      R"({"text":"one \u00e9 \ud83d\ude00 \" \\","n":[1,-2.5e3,{"a":null}],"b":true})",
      R"([{"text":"é漢"}, {"text":"two","x":{"text":"inner"}}, {"text":""}])"};
  const std::vector<std::string> words = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"",
                                          "\\",
                                          "\\u",
                                          "\\ud800",
                                          ":",
                                          ",",
                                          "\xed\xa0\x80",
                                          "\xff",
                                          "NaN",
                                          "1e",
                                          std::string(1, '\0'),
                                          std::string(2000, '[')};
  const JsonFields fields({"text"});
  std::vector<JsonText> values;
  fuzz(Mutator(25, {texts[0]}, words), 50000, [&](const std::string& text) {
    const auto problem = fields.parse(text, values);
    require(!problem, "{}", problem.value_or(""));
  });
  TempDir dir;
  fuzz(Mutator(26, {texts[1]}, words), 3000, [&](const std::string& text) {
    replace(dir / "x.json", text);
    const auto source = array_to_lines(open_bytes(dir / "x.json"), "x.json");
    char piece[7];
    while (source->read(piece) > 0) {
    }
  });
}

}  // namespace
}  // namespace megatron::testing
