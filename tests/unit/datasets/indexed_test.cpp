#include "megatron/datasets/indexed/indexed_dataset.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

std::vector<int64_t> read_all(const IndexedDataset& dataset, int64_t sequence) {
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.lengths()[sequence]));
  dataset.read(sequence, 0, tokens);
  return tokens;
}

TEST(IndexedDataset, EveryTypeThereAndBack) {
  TempDir dir;
  for (uint8_t code = 1; code <= 8; ++code) {
    const auto type = static_cast<TokenType>(code);
    const std::string prefix = dir / std::string(name_of(type));
    IndexedWriter writer(prefix, type);
    const std::vector<int64_t> first = {1, 2, 100}, second = {0, 127};
    writer.add_sequence(first);
    writer.add_sequence(second);
    writer.end_document();
    writer.end_document();  // an empty document keeps its place
    writer.add_sequence({});
    writer.end_document();
    writer.commit();
    for (bool mmap : {true, false}) {
      const IndexedDataset dataset(prefix, {.mmap = mmap});
      dataset.verify();
      EXPECT_EQ(dataset.type(), type);
      EXPECT_EQ(dataset.sequences(), 3);
      EXPECT_EQ(dataset.documents(), 3);
      EXPECT_EQ(dataset.document_index()[1], 2);
      EXPECT_EQ(dataset.document_index()[2], 2);
      EXPECT_EQ(read_all(dataset, 0), first);
      EXPECT_EQ(read_all(dataset, 1), second);
      EXPECT_TRUE(read_all(dataset, 2).empty());
    }
  }
}

TEST(IndexedDataset, NegativeAndWideTokens) {
  TempDir dir;
  const std::vector<int64_t> wide = {-1, int64_t{1} << 40, 7};
  IndexedWriter writer(dir / "wide", TokenType::i64);
  writer.add_sequence(wide);
  writer.end_document();
  writer.commit();
  EXPECT_EQ(read_all(IndexedDataset(dir / "wide"), 0), wide);
  IndexedWriter narrow(dir / "narrow", TokenType::u16);
  EXPECT_EQ(error_of([&] { narrow.add_sequence(std::vector<int64_t>{65536}); }),
            dir / "narrow" + ": token 65536 does not fit into uint16; write a wider type");
}

TEST(IndexedDataset, Modes) {
  TempDir dir;
  IndexedWriter writer(dir / "mm", TokenType::i32, true);
  writer.add_sequence(std::vector<int64_t>{5}, 0);
  writer.add_sequence(std::vector<int64_t>{6, 7}, 1);
  writer.end_document();
  writer.commit();
  const IndexedDataset dataset(dir / "mm", {.multimodal = true});
  EXPECT_EQ(dataset.modes()[0], 0);
  EXPECT_EQ(dataset.modes()[1], 1);
  merge_datasets({dir / "mm", dir / "mm"}, dir / "twice", true);
  const IndexedDataset twice(dir / "twice", {.multimodal = true});
  EXPECT_EQ(twice.sequences(), 4);
  EXPECT_EQ(twice.modes()[3], 1);
  EXPECT_EQ(read_all(twice, 3), (std::vector<int64_t>{6, 7}));
  EXPECT_NE(error_of([&] { IndexedDataset wrong(dir / "mm"); }).find("open it as multimodal"),
            std::string::npos);
}

TEST(IndexedDataset, MalformedFilesAreRefused) {
  TempDir dir;
  IndexedWriter writer(dir / "good", TokenType::u16);
  for (int i = 0; i < 3; ++i) {
    writer.add_sequence(std::vector<int64_t>{1, 2, 3});
    writer.end_document();
  }
  writer.commit();
  const std::string good = read_text(dir / "good.idx");
  write_text(dir / "bad.bin", read_text(dir / "good.bin"));
  auto error_with = [&](const std::string& text) {
    write_text(dir / "bad.idx", text);
    return error_of([&] { IndexedDataset(dir / "bad").verify(); });
  };
  auto changed = [&](size_t at, std::string_view bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  using std::string_view_literals::operator""sv;
  EXPECT_EQ(error_with(good), "no error");
  EXPECT_NE(error_with("").find("cut"), std::string::npos);
  EXPECT_NE(error_with(good.substr(0, 40)).find("do not fit"), std::string::npos);
  EXPECT_NE(error_with(changed(0, "X")).find("MMIDIDX"), std::string::npos);
  EXPECT_NE(error_with(changed(9, "\x02")).find("version 2"), std::string::npos);
  EXPECT_NE(error_with(changed(17, "\x09")).find("dtype code 9"), std::string::npos);
  EXPECT_NE(error_with(changed(18, "\xff\xff\xff\xff\xff\xff\xff\xff")).find("do not fit"),
            std::string::npos);
  EXPECT_NE(error_with(changed(26, "\0\0\0\0\0\0\0\0"sv)).find("do not fit"), std::string::npos);
  EXPECT_NE(error_with(changed(34, "\xff\xff\xff\xff")).find("has -1 tokens"), std::string::npos);
  EXPECT_NE(error_with(good + "x").find("expected"), std::string::npos);
  EXPECT_NE(error_with(changed(46, "\x02")).find("begins at byte 2"), std::string::npos);
  EXPECT_NE(error_with(changed(46 + 24 + 24, "\x07")).find("ends at 7"), std::string::npos);
  // Without verify(), reading still never leaves the data.
  write_text(dir / "bad.idx", changed(34, "\xff\xff\xff\x7f"));
  std::vector<int64_t> out(100);
  EXPECT_NE(error_of([&] { IndexedDataset(dir / "bad").read(0, 0, out); }).find("leave the file"),
            std::string::npos);
}

// What was meant is told where it can be seen.
TEST(IndexedDataset, NamesWithoutAnIndex) {
  TempDir dir;
  IndexedWriter writer(dir / "corpus_text_document", TokenType::u16);
  writer.add_sequence(std::vector<int64_t>{1});
  writer.end_document();
  writer.commit();
  write_text(dir / "corpus.jsonl", "{}");
  const auto refusal = [&](const std::string& name) {
    const std::string prefix = dir / name, error = error_of([&] { IndexedDataset wrong(prefix); }),
                      begin = "token dataset " + prefix + ": there is no " + prefix + ".idx; ";
    EXPECT_TRUE(error.starts_with(begin)) << error;
    return error.substr(std::min(begin.size(), error.size()));
  };
  EXPECT_EQ(refusal("corpus_text_document.bin"), "leave .bin out of the name");
  EXPECT_EQ(refusal("corpus"), "did you mean " + dir / "corpus_text_document" + "?");
  EXPECT_EQ(refusal("corpus.jsonl"),
            "it is another kind of file; megatron preprocess makes a token dataset of text");
  EXPECT_EQ(refusal("absent"), "name the path of a .bin and an .idx file without these endings");
  EXPECT_EQ(refusal("absent/deep"), "name the path of a .bin and an .idx file without these endings");
}

TEST(IndexedDataset, NothingIsPublishedWithoutCommit) {
  TempDir dir;
  {
    IndexedWriter writer(dir / "gone", TokenType::i32);
    writer.add_sequence(std::vector<int64_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace megatron::testing
