#include "megatron/cli/commands.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "megatron/base/json.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

using testing::TempDir;

Outcome run(std::vector<std::string> args) {
  args.insert(args.begin(), "data");
  return run_command(std::move(args));
}

// Documents of 5 to 14 tokens that end with 9.
std::string write_data(const TempDir& dir, const std::string& name) {
  IndexedWriter writer(dir / name, TokenType::u16);
  for (int64_t d = 0; d < 40; ++d) {
    std::vector<int64_t> tokens(static_cast<size_t>(5 + d % 10), 10 + d);
    tokens.back() = 9;
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
  return dir / name;
}

TEST(DataCommand, Inspect) {
  TempDir dir;
  const std::string prefix = write_data(dir, "a");
  const Outcome outcome = run({"inspect", prefix});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(
      outcome.out.find("dtype      uint16\ndocuments  40, 0 of them empty\nsequences  40\n"
                       "tokens     380, 760 bytes\nlength     5 to 14, mean 9.5\nbegins     10 10 10 10 9\n"),
      std::string::npos)
      << outcome.out;
  const Json json = Json::parse(run({"inspect", prefix + ".idx", "--json"}).out);
  EXPECT_EQ(json.at("tokens").as_int(), 380);
  EXPECT_EQ(run({"inspect"}).code, 2);
  EXPECT_EQ(run({"inspect", dir / "absent"}).code, 1);
}

TEST(DataCommand, MergesDatasetsInTheirOrder) {
  TempDir dir;
  const std::string a = write_data(dir, "a"), both = dir / "both";
  IndexedWriter writer(dir / "b", TokenType::u16);
  writer.add_sequence(std::vector<int64_t>{7, 8});
  writer.end_document();
  writer.commit();
  const Outcome outcome = run({"merge", dir / "b.idx", a, "--out", both});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, both + "\n");
  const Json json = Json::parse(run({"inspect", both, "--json"}).out);
  EXPECT_EQ(json.at("documents").as_int(), 41);
  EXPECT_EQ(json.at("first_tokens").dump(), "[7,8]");
  IndexedWriter(dir / "wide", TokenType::i32).commit();
  EXPECT_EQ(run({"merge", a, dir / "wide", "--out", dir / "none"}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(dir / "none.idx"));
  EXPECT_EQ(run({"merge", "--out", both}).code, 2);
  EXPECT_EQ(run({"merge", a}).code, 2);
}

TEST(DataCommand, SamplesOfOneDatasetAndOfABlend) {
  TempDir dir;
  const std::string a = write_data(dir, "a"), b = write_data(dir, "b"), out = dir / "out.safetensors";
  const std::vector<std::string> rest = {"--seq-length", "16", "--split", "80,20,0", "--samples", "30,4,1",
                                         "--eod-id",     "9",  "--count", "5",       "--out",     out};
  auto with = [&](std::vector<std::string> first) {
    first.insert(first.begin(), "samples");
    first.insert(first.end(), rest.begin(), rest.end());
    return run(std::move(first));
  };
  Outcome outcome = with({"--data-path", a});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  {
    const SafetensorsFile file(out);
    EXPECT_EQ(file.tensor("train.tokens").shape(), (Shape{5, 16}));
    EXPECT_EQ(file.tensor("train.tokens").dtype(), DType::I32);
    EXPECT_EQ(file.tensor("train.loss_mask").dtype(), DType::F32);
    EXPECT_EQ(file.tensor("train.shuffle_index").dtype(), DType::I64);
    EXPECT_EQ(file.tensor("valid.sample_index").shape().rank(), 2);
    EXPECT_FALSE(file.contains("test.tokens"));
    EXPECT_FALSE(file.contains("train.attention_mask"));
  }
  outcome = with({"--reset-attention-mask", "--data-path", "30", a, "70", b});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile file(out);
  EXPECT_EQ(file.at("train.dataset_index").stored, "I16");
  EXPECT_EQ(file.tensor("train.dataset_index").shape(), (Shape{30}));
  EXPECT_EQ(file.tensor("train.attention_mask").shape(), (Shape{5, 1, 16, 16}));
}

TEST(DataCommand, MaskedSamples) {
  TempDir dir;
  IndexedWriter writer(dir / "s", TokenType::u16);
  for (int64_t d = 0; d < 30; ++d) {
    for (int64_t s = 0; s < 4; ++s) writer.add_sequence(std::vector<int64_t>(7, 5 + d % 3));
    writer.end_document();
  }
  writer.commit();
  testing::write_text(dir / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##c\n");
  auto run_kind = [&](const std::string& kind) {
    return run({"samples",
                "--kind",
                kind,
                "--data-path",
                dir / "s",
                "--seq-length",
                "24",
                "--split",
                "100",
                "--samples",
                "40,0,0",
                "--vocab-file",
                dir / "vocab.txt",
                "--vocab-extra-ids",
                "10",
                "--decoder-seq-length",
                "24",
                "--short-seq-prob",
                "0.0",
                "--count",
                "6",
                "--out",
                dir / "out.safetensors"});
  };
  Outcome outcome = run_kind("bert");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  {
    const SafetensorsFile file(dir / "out.safetensors");
    EXPECT_EQ(file.tensor("train.text").shape(), (Shape{6, 24}));
    EXPECT_EQ(file.tensor("train.text").data<int32_t>()[0], 2);
    EXPECT_EQ(file.tensor("train.is_random").shape(), (Shape{6}));
    EXPECT_EQ(file.tensor("train.sample_index").dtype(), DType::I64);
  }
  outcome = run_kind("t5");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile file(dir / "out.safetensors");
  EXPECT_EQ(file.tensor("train.text_dec").data<int32_t>()[0], 8);  // [BOS] behind the file's pieces
  EXPECT_EQ(file.tensor("train.sample_ids").shape(), (Shape{6}));
  EXPECT_EQ(run_kind("gtp").code, 2);
}

TEST(DataCommand, FaultsAreTold) {
  TempDir dir;
  const std::string a = write_data(dir, "a"), out = dir / "o.safetensors";
  EXPECT_EQ(run({}).code, 2);
  EXPECT_EQ(run({"sample"}).code, 2);
  EXPECT_EQ(run({"samples", "--data-path", a}).code, 2);
  const Outcome outcome = run({"samples", "--data-path", a, "--seq-length", "8", "--samples", "1,1,1",
                               "--eod-id", "9", "--split", "1,2,3,4", "--out", out});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("more than three numbers"), std::string::npos) << outcome.err;
}

// Megatron-LM's SFTDataset with a real tokenizer and its template, every field.
TEST(DataCommand, SftSamplesAreMegatrons) {
  const std::string folder = "megatron_data_masked";
  for (const char* name :
       {"sft_default", "sft_identity", "sft_h_aligned", "sft_nano_v2", "sft_nano_v2_cp4"}) {
    SCOPED_TRACE(name);
    TempDir dir;
    const Json meta = testing::golden_json(folder, std::string("expected/") + name);
    const SafetensorsFile expected = testing::golden_tensors(folder, std::string("expected/") + name);
    const Json& sizes = meta.at("sizes");
    const Outcome outcome =
        run({"samples",
             "--kind",
             "sft",
             "--data-path",
             testing::golden_path(folder, "data/sft.jsonl"),
             "--tokenizer-type",
             "SFTTokenizer",
             "--tokenizer-model",
             std::filesystem::path(testing::golden_path(folder, "data/sft_tokenizer/tokenizer.json"))
                 .parent_path(),
             "--sft-tokenizer-prompt-format",
             meta.at("prompt_format").as_string(),
             "--split",
             meta.at("split").as_string(),
             "--seq-length",
             std::to_string(meta.at("seq_length").as_int()),
             "--context-parallel-size",
             std::to_string(meta.at("context_parallel_size").as_int()),
             "--samples",
             fmt::format("{},{},{}", sizes[0].as_int(), sizes[1].as_int(), sizes[2].as_int()),
             "--out",
             dir / "o.safetensors"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const SafetensorsFile written(dir / "o.safetensors");
    for (const std::string& field : expected.names()) {
      SCOPED_TRACE(field);
      const Tensor a = expected.tensor(field), b = written.tensor(field);
      ASSERT_EQ(a.dtype(), b.dtype());
      ASSERT_EQ(a.shape(), b.shape());
      EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.numel()) * size_of(a.dtype())), 0);
    }
  }
}

TEST(DataCommand, FimSamplesHoldMarks) {
  TempDir dir;
  const std::string prefix = write_data(dir, "a");
  Json vocabulary = Json::object();
  for (const char* mark : {"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<|endoftext|>"})
    vocabulary[mark] = static_cast<int64_t>(vocabulary.size());
  for (int i = 5; i < 60; ++i) vocabulary[std::string(1, static_cast<char>('A' + i - 5))] = i;
  testing::write_text(dir / "vocab.json", vocabulary.dump());
  testing::write_text(dir / "merges.txt", "");
  const std::vector<std::string> args = {"samples",
                                         "--kind",
                                         "fim",
                                         "--data-path",
                                         prefix,
                                         "--seq-length",
                                         "16",
                                         "--split",
                                         "1,0,0",
                                         "--samples",
                                         "10,0,0",
                                         "--fim-rate",
                                         "1",
                                         "--tokenizer-type",
                                         "GPT2BPETokenizer",
                                         "--vocab-file",
                                         dir / "vocab.json",
                                         "--merge-file",
                                         dir / "merges.txt",
                                         "--out",
                                         dir / "o.safetensors"};
  const Outcome outcome = run(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Tensor tokens = SafetensorsFile(dir / "o.safetensors").tensor("train.tokens");
  for (int64_t row = 0; row < tokens.size(0); ++row)
    EXPECT_EQ(tokens.data<int32_t>()[row * 16], 0) << "a sample begins with the mark of its prefix";
  std::vector<std::string> without = args;
  without.erase(without.begin() + 13, without.begin() + 15);
  EXPECT_EQ(run(without).code, 2);
}

}  // namespace
}  // namespace megatron
