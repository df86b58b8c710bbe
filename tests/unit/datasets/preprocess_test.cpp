#include "megatron/datasets/text/preprocess.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/datasets/parquet/parquet_writer.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

constexpr int32_t kEod = 256;

// One token a byte.
EncodeText byte_encoder() {
  return [](std::string_view text, std::vector<int32_t>& tokens) {
    for (char c : text) tokens.push_back(static_cast<uint8_t>(c));
  };
}

std::vector<std::string> documents(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  dataset.verify();
  std::vector<std::string> result;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    std::string& text = result.emplace_back();
    for (int64_t i = dataset.document_index()[d]; i < dataset.document_index()[d + 1]; ++i) {
      std::vector<int64_t> tokens(static_cast<size_t>(dataset.lengths()[i]));
      dataset.read(i, 0, tokens);
      if (!text.empty()) text += "/";
      for (int64_t token : tokens) text += token == kEod ? '$' : static_cast<char>(token);
    }
  }
  return result;
}

class Preprocess : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view text) {
    write_text(dir_ / name, text);
    return dir_ / name;
  }
  std::vector<std::string> run(PreprocessOptions options) {
    options.output_prefix = dir_ / "out";
    report_ = preprocess(options, byte_encoder);
    return documents(report_.prefixes[0]);
  }

  TempDir dir_;
  PreprocessReport report_;
};

using Texts = std::vector<std::string>;

TEST_F(Preprocess, LinesOfJson) {
  const std::string path =
      write("a.jsonl", "{\"text\":\"one\"}\n{\"id\":1,\"text\":\"\"}\n{\"text\":\"tw\\u006f\"}");
  EXPECT_EQ(run({.inputs = {path}}), (Texts{"one", "", "two"}));
  EXPECT_TRUE(report_.prefixes[0].ends_with("out_text_document"));
  EXPECT_EQ(report_.documents, 3);
  EXPECT_EQ(report_.tokens, 6);
  EXPECT_EQ(run({.inputs = {path, path}, .append_eod = kEod}),
            (Texts{"one$", "", "two$", "one$", "", "two$"}));
}

TEST_F(Preprocess, ListsAreSentences) {
  const std::string path =
      write("a.jsonl", "{\"text\":[\"A b. C d.\",\"\",\"e\"]}\n{\"text\":[]}\n{\"text\":\"f\"}\n");
  EXPECT_EQ(run({.inputs = {path}, .append_eod = kEod}), (Texts{"A b. C d./e$", "", "f$"}));
  EXPECT_EQ(run({.inputs = {path}, .split_sentences = true}), (Texts{"A b. C d./e", "", "f"}));
}

TEST_F(Preprocess, SentencesAndKeys) {
  const std::string path = write("a.jsonl", "{\"t\":\"A b. C d.\",\"u\":\"x\"}\n{\"u\":\"y\",\"t\":\" \"}\n");
  PreprocessOptions options{
      .inputs = {path}, .keys = {"t", "u"}, .append_eod = kEod, .split_sentences = true};
  EXPECT_EQ(run(options), (Texts{"A b./C d.$", ""}));
  EXPECT_TRUE(report_.prefixes[1].ends_with("out_u_sentence"));
  EXPECT_EQ(documents(report_.prefixes[1]), (Texts{"x$", "y$"}));
}

TEST_F(Preprocess, EveryFormat) {
  const Texts expected = {"one", "two"};
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  EXPECT_EQ(run({.inputs = {write("a.json", lines)}}), expected);
  EXPECT_EQ(run({.inputs = {write("b.json", "\n[{\"text\":\n\"one\"},{\"text\":\"two\"}]")}}), expected);
  EXPECT_EQ(run({.inputs = {write("c.txt", "one\ntwo\n")}}), expected);
  {
    ParquetWriter writer(dir_ / "f.parquet", {{"text"}});
    const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> columns = {expected};
    writer.write_rows(columns);
    writer.commit();
  }
  EXPECT_EQ(run({.inputs = {dir_ / "f.parquet"}}), expected);
}

TEST_F(Preprocess, CompressedFiles) {
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  std::string packed, zstd;
  try {
    packed = gzip_compress(std::as_bytes(std::span(lines)));
    zstd = zstd_compress(std::as_bytes(std::span(lines)));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(run({.inputs = {write("a.jsonl.gz", packed)}}), (Texts{"one", "two"}));
  EXPECT_EQ(run({.inputs = {write("b.jsonl.zst", zstd)}}), (Texts{"one", "two"}));
  // Two streams end to end are one file, and one that is cut is refused.
  EXPECT_EQ(run({.inputs = {write("c.gz", packed + packed)}}), (Texts{"one", "two", "one", "two"}));
  EXPECT_EQ(run({.inputs = {write("d.zst", zstd + zstd)}}), (Texts{"one", "two", "one", "two"}));
  for (const std::string& whole : {packed, zstd}) {
    const std::string cut = write("e", std::string_view(whole).substr(0, whole.size() / 2));
    EXPECT_NE(error_of([&] { run({.inputs = {cut}}); }).find("too early"), std::string::npos);
  }
}

TEST_F(Preprocess, XzFiles) {
  constexpr char kPacked[] =
      "\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f"
      "\xe5\xa3\xe0\x00\x1d\x00\x1a\x5d\x00\x3d\x88\x8a\x86\x94\x88\x13\xe0\xf3\x89\x4a\x79\xc1"
      "\x9c\x9e\x58\x7d\xdf\x45\xae\xcf\xa0\x24\xee\x9b\x00\x00\x00\x00\x05\xe8\x23\x27\xe4\x8f"
      "\x7f\x8d\x00\x01\x36\x1e\x3d\x19\x95\x53\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a";
  const std::string path = write("a.jsonl.xz", {kPacked, sizeof(kPacked) - 1});
  try {
    EXPECT_EQ(run({.inputs = {path}}), (Texts{"one", "two"}));
  } catch (const Error& error) {
    ASSERT_NE(std::string(error.what()).find("this build cannot read xz"), std::string::npos) << error.what();
  }
}

TEST_F(Preprocess, MalformedLinesAreNamedOrCounted) {
  const std::string path = write("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\n\n{\"text\":\"four\"}\n");
  EXPECT_EQ(error_of([&] { run({.inputs = {path}}); }),
            path + " line 2: a value was expected at byte 8; --skip-bad-lines leaves such lines out");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out_text_document.idx"));
  EXPECT_EQ(run({.inputs = {path}, .skip_bad_lines = true}), (Texts{"one", "four"}));
  EXPECT_EQ(report_.bad_lines, 2);
  EXPECT_NE(error_of([&] { run({.inputs = {dir_ / "absent"}}); }).find("absent"), std::string::npos);
}

TEST_F(Preprocess, OutputDoesNotDependOnWorkers) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += fmt::format("{{\"text\":\"{}\"}}\n",
                         std::string(static_cast<size_t>(i * 7919 % 97), static_cast<char>('a' + i % 26)));
  const std::string path = write("a.jsonl", lines);
  run({.inputs = {path}, .append_eod = kEod});
  const std::string bin = read_text(dir_ / "out_text_document.bin"),
                    idx = read_text(dir_ / "out_text_document.idx");
  for (int workers : {1, 2, 5}) {
    for (size_t block : {1, 100, 5000}) {
      run({.inputs = {path}, .append_eod = kEod, .workers = workers, .block_bytes = block});
      EXPECT_EQ(read_text(dir_ / "out_text_document.bin"), bin);
      EXPECT_EQ(read_text(dir_ / "out_text_document.idx"), idx);
    }
  }
}

TEST_F(Preprocess, PartitionsStandEndToEnd) {
  const std::string path = write("a.txt", "0\n1\n2\n3\n4\n5\n6\n");
  for (size_t block : {1, 1000}) {
    PreprocessOptions options{.inputs = {path}, .append_eod = kEod, .partitions = 3, .block_bytes = block};
    EXPECT_EQ(run(options), (Texts{"0$", "3$", "6$", "1$", "4$", "2$", "5$"}));
    options.keep_sequential = true;
    EXPECT_EQ(run(options), (Texts{"0$", "1$", "2$", "3$", "4$", "5$", "6$"}));
  }
  // Nothing is left of the partitions.
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
    EXPECT_EQ(entry.path().filename().string().find(".part"), std::string::npos) << entry.path();
}

TEST_F(Preprocess, FaultsOfEncodersArrive) {
  const std::string path = write("a.jsonl", "{\"text\":\"one\"}\n");
  PreprocessOptions options{.inputs = {path}, .output_prefix = dir_ / "out", .workers = 3};
  EXPECT_EQ(error_of([&] {
              preprocess(options,
                         [] { return [](std::string_view, std::vector<int32_t>&) { fail("broken"); }; });
            }),
            "broken");
  options.type = TokenType::u8;
  EXPECT_NE(error_of([&] {
              preprocess(options,
                         [] { return [](std::string_view, std::vector<int32_t>& out) { out = {300}; }; });
            }).find("does not fit into uint8"),
            std::string::npos);
}

// An encoder that fails after so many documents, and counts them.
std::function<EncodeText()> failing_encoder(std::atomic<int>& encoded, int most) {
  return [&encoded, most]() -> EncodeText {
    return [&encoded, most, encode = byte_encoder()](std::string_view text, std::vector<int32_t>& tokens) {
      require(++encoded <= most, "the machine went down");
      encode(text, tokens);
    };
  };
}

TEST_F(Preprocess, GoesOnWhereARunWasStopped) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += fmt::format("{{\"text\":\"document {}\"}}\n", i * i);
  for (int partitions : {1, 3}) {
    PreprocessOptions options{.inputs = {write("a.jsonl", lines)}, .append_eod = kEod};
    options.workers = 2;
    options.partitions = partitions;
    options.block_bytes = 100;
    const Texts expected = run(options);
    options.segment_bytes = 3000;
    options.output_prefix = dir_ / fmt::format("stopped{}", partitions);
    std::atomic<int> encoded = 0;
    EXPECT_THROW(preprocess(options, failing_encoder(encoded, 250)), Error);
    EXPECT_TRUE(std::filesystem::exists(options.output_prefix + ".segments/state.json"));
    EXPECT_FALSE(std::filesystem::exists(options.output_prefix + "_text_document.idx"));
    options.workers = 1;  // is none of the options that must be the same
    encoded = 0;
    const PreprocessReport report = preprocess(options, failing_encoder(encoded, 1000));
    EXPECT_EQ(documents(report.prefixes[0]), expected);
    EXPECT_EQ(report.documents, 400);
    EXPECT_EQ(report.input_bytes, static_cast<int64_t>(lines.size()));
    EXPECT_GT(report.resumed_bytes, 0);
    EXPECT_LT(encoded, 300);
    EXPECT_FALSE(std::filesystem::exists(options.output_prefix + ".segments"));
  }
}

TEST_F(Preprocess, StartsAnewWhereAnythingDiffers) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += fmt::format("{{\"text\":\"document {}\"}}\n", i);
  PreprocessOptions options{.inputs = {write("a.jsonl", lines)}, .output_prefix = dir_ / "out"};
  options.block_bytes = 100;
  options.segment_bytes = 1000;
  for (int change = 0; change < 3; ++change) {
    std::atomic<int> encoded = 0;
    EXPECT_THROW(preprocess(options, failing_encoder(encoded, 50)), Error);
    if (change == 0) options.append_eod = kEod;
    if (change == 1) options.encoder = "another";
    if (change == 2) write("a.jsonl", lines + "{\"text\":\"one more\"}\n");
    encoded = 0;
    EXPECT_EQ(preprocess(options, failing_encoder(encoded, 1000)).resumed_bytes, 0);
    EXPECT_EQ(encoded, change == 2 ? 101 : 100);
  }
}

TEST_F(Preprocess, LeavesNothingOfAShortRun) {
  PreprocessOptions options{.inputs = {write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n")},
                            .output_prefix = dir_ / "out"};
  std::atomic<int> encoded = 0;
  EXPECT_THROW(preprocess(options, failing_encoder(encoded, 1)), Error);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out.segments"));
}

}  // namespace
}  // namespace megatron::testing
