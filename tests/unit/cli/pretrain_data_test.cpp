#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

// Training from .bin/.idx files sees the samples that `data samples` shows, in their order.
namespace megatron {
namespace {

using testing::TempDir;

constexpr int64_t kBatch = 4, kIterations = 6, kLength = 8;

void write_data(const std::string& prefix, int64_t first, int64_t documents) {
  IndexedWriter writer(prefix, TokenType::u16);
  for (int64_t d = 0; d < documents; ++d) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 5 + d % 10; ++i) tokens.push_back(1 + (first + d * 7 + i * i) % 30);
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
}

// What a run leaves that shows its samples: losses, gradient norms, and all bytes of weights and moments.
struct Trained {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::string> files;  // of the checkpoint
  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained train(const TempDir& dir, const std::string& name, std::vector<std::string> further) {
  const std::string metrics = dir / (name + ".jsonl");
  std::vector<std::string> args = {"pretrain",
                                   "--num-layers",
                                   "2",
                                   "--hidden-size",
                                   "16",
                                   "--num-attention-heads",
                                   "2",
                                   "--max-position-embeddings",
                                   "8",
                                   "model.vocab_size=32",
                                   "--micro-batch-size",
                                   "1",
                                   "--global-batch-size",
                                   std::to_string(kBatch),
                                   "--train-iters",
                                   std::to_string(kIterations),
                                   "--lr",
                                   "1e-3",
                                   "--device",
                                   "cpu",
                                   "--seed",
                                   "7",
                                   "--metrics",
                                   metrics,
                                   "--save",
                                   dir / (name + ".ckpt")};
  args.insert(args.end(), further.begin(), further.end());
  const Outcome outcome = run_command(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  Trained result;
  std::ifstream rows(metrics);
  for (std::string row; std::getline(rows, row);) {
    const Json json = Json::parse(row);
    result.losses.push_back(json.at("lm_loss").as_double());
    result.grad_norms.push_back(json.at("grad_norm").as_double());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir / (name + ".ckpt")))
    if (entry.path().extension() == ".safetensors")
      result.files[entry.path().filename()] = read_text_file(entry.path());
  EXPECT_FALSE(result.files.empty());
  return result;
}

TEST(PretrainData, IsAReplayOfTheSamples) {
  TempDir dir;
  write_data(dir / "a", 0, 60);
  write_data(dir / "b", 11, 45);
  const std::vector<std::string> blend = {"--data-path", "30",      dir / "a", "70",
                                          dir / "b",     "--split", "90,10,0"};
  const int64_t samples = kBatch * kIterations;
  std::vector<std::string> args = {"data",         "samples",
                                   "--seq-length", "8",
                                   "--seed",       "7",
                                   "--samples",    fmt::format("{},{},4", samples, 4 * kBatch),
                                   "--eod-id",     "31",
                                   "--count",      std::to_string(samples),
                                   "--out",        dir / "s.safetensors"};
  args.insert(args.end(), blend.begin(), blend.end());
  const Outcome shown = run_command(args);
  ASSERT_EQ(shown.code, 0) << shown.err;
  const SafetensorsFile file(dir / "s.safetensors");
  const Tensor tokens = file.tensor("train.tokens"), labels = file.tensor("train.labels");
  ASSERT_EQ(tokens.shape(), (Shape{samples, kLength}));
  const auto at = [](const Tensor& t, int64_t i) {
    return t.dtype() == DType::I32 ? t.data<int32_t>()[i] : static_cast<int32_t>(t.data<int64_t>()[i]);
  };
  std::vector<int32_t> rows;
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t i = 0; i < kLength; ++i) rows.push_back(at(tokens, s * kLength + i));
    rows.push_back(at(labels, s * kLength + kLength - 1));
  }
  write_safetensors(dir / "replay.safetensors",
                    {{"rows", Tensor::wrap(rows.data(), {kIterations, kBatch, kLength + 1}, DType::I32)}});
  const Trained replayed = train(dir, "replay", {"--replay", (dir / "replay.safetensors") + ":rows"});
  ASSERT_EQ(replayed.losses.size(), static_cast<size_t>(kIterations));
  std::vector<std::string> with = blend;
  with.insert(with.end(), {"--seq-length", "8", "--data-cache-path", dir / "cache"});
  EXPECT_TRUE(train(dir, "data", with) == replayed);
  EXPECT_TRUE(train(dir, "cached", with) == replayed) << "from cached indices";
  with.insert(with.end(), {"--no-mmap-bin-files"});
  EXPECT_TRUE(train(dir, "pread", with) == replayed);
  // The same on more ranks, bitwise; only from layout to layout sums differ in the last digits.
  const std::vector<std::string> two = {"--ranks", "2"}, sixteen = {"--ranks",
                                                                    "16",
                                                                    "--tensor-model-parallel-size",
                                                                    "2",
                                                                    "--pipeline-model-parallel-size",
                                                                    "2",
                                                                    "--context-parallel-size",
                                                                    "2"};
  for (const auto& layout : {two, sixteen}) {
    std::vector<std::string> from_data = with,
                             from_rows = {"--replay", (dir / "replay.safetensors") + ":rows"};
    from_data.insert(from_data.end(), layout.begin(), layout.end());
    from_rows.insert(from_rows.end(), layout.begin(), layout.end());
    const Trained expected = train(dir, "rows" + layout[1], from_rows);
    ASSERT_EQ(expected.losses.size(), replayed.losses.size());
    EXPECT_TRUE(train(dir, "ranks" + layout[1], from_data) == expected) << layout[1] << " ranks";
    for (size_t i = 0; i < replayed.losses.size(); ++i)
      EXPECT_NEAR(expected.losses[i], replayed.losses[i], 2e-6);
  }
}

TEST(PretrainData, RefusesWhatCannotBe) {
  TempDir dir;
  write_data(dir / "a", 0, 20);
  const auto refused = [&](std::vector<std::string> further, const std::string& why) {
    std::vector<std::string> args = {"pretrain", "--num-layers",
                                     "2",        "--hidden-size",
                                     "16",       "--num-attention-heads",
                                     "2",        "--max-position-embeddings",
                                     "8",        "--seq-length",
                                     "8",        "--micro-batch-size",
                                     "1",        "--global-batch-size",
                                     "2",        "--train-iters",
                                     "2",        "--lr",
                                     "1e-3",     "--device",
                                     "cpu"};
    args.insert(args.end(), further.begin(), further.end());
    const Outcome outcome = run_command(args);
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  };
  refused({"--data-path", dir / "a", "model.vocab_size=16"}, "give the --vocab-size of the tokenizer");
  refused({"--data-path", dir / "absent", "model.vocab_size=32"}, "absent");
  refused({"--data-path", dir / "a", "--train-data-path", dir / "a", "model.vocab_size=32"},
          "keep one of --data-path and --train-data-path");
  refused({"model.vocab_size=32"}, "--data-path PREFIX");
}

// The tokenizer says how many tokens there are; the files say which tokenizer it is.
TEST(PretrainData, TheTokenizerSaysHowLargeTheVocabularyIs) {
  TempDir dir;
  write_data(dir / "a", 0, 60);
  testing::write_text(dir / "corpus", "low lower lowest slow\n");
  ASSERT_EQ(run_command(
                {"tokenizer", "train", "--input", dir / "corpus", "--out", dir / "t", "--vocab-size", "264"})
                .code,
            0);
  const std::string vocab = dir / "t" + "/vocab.json", merges = dir / "t" + "/merges.txt";
  const std::vector<std::string> base = {"pretrain", "--num-layers",
                                         "1",        "--hidden-size",
                                         "16",       "--num-attention-heads",
                                         "2",        "--max-position-embeddings",
                                         "8",        "--seq-length",
                                         "8",        "--micro-batch-size",
                                         "1",        "--train-iters",
                                         "2",        "--lr",
                                         "1e-3",     "--device",
                                         "cpu",      "--data-path",
                                         dir / "a",  "--make-vocab-size-divisible-by",
                                         "4"};
  const auto run = [&](const std::vector<std::string>& further) {
    std::vector<std::string> args = base;
    args.insert(args.end(), further.begin(), further.end());
    return run_command(args);
  };
  const std::vector<std::string> files = {"--vocab-file", vocab, "--merge-file", merges};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), files.begin(), files.end());
    return more;
  };
  Outcome outcome = run(with({"--save", dir / "ckpt", "--num-workers", "0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome other = run(with({"--num-workers", "3"}));
  const auto loss = [](const Outcome& from) {
    const size_t at = from.out.find("lm loss");
    return from.out.substr(at, from.out.find("|", at) - at);
  };
  EXPECT_EQ(loss(outcome), loss(other)) << "whatever the workers";
  outcome = run(with({"--vocab-size", "100"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("the tokenizer has 264 tokens"), std::string::npos) << outcome.err;
  outcome = run(with({"model.vocab_size=100"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("has 264 tokens, but the model's vocab_size is 100"), std::string::npos)
      << outcome.err;
  outcome = run({"--tokenizer-type", "NullTokenizer", "--vocab-size", "40", "--load", dir / "ckpt"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("the checkpoint's vocabulary has 264 tokens, the run's 40"), std::string::npos)
      << outcome.err;
  outcome = run({"--vocab-file", dir / "absent.json", "--merge-file", merges});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("absent.json is no file"), std::string::npos) << outcome.err;
}

TEST(PretrainData, ConversationsFromTheCommandLine) {
  TempDir dir;
  std::string rows;
  for (int i = 0; i < 8; ++i)
    rows += fmt::format("{{\"prompt\": \"n{}\", \"completion\": \"m{}\"}}\n", i, i * i);
  testing::write_text(dir / "rows.jsonl", rows);
  for (const char* packing : {"none", "batch", "offline"}) {
    const Outcome outcome = run_command({"pretrain",
                                         "--num-layers",
                                         "1",
                                         "--hidden-size",
                                         "16",
                                         "--num-attention-heads",
                                         "2",
                                         "--max-position-embeddings",
                                         "16",
                                         "--seq-length",
                                         "16",
                                         "--micro-batch-size",
                                         "2",
                                         "--global-batch-size",
                                         "4",
                                         "--train-iters",
                                         "3",
                                         "--lr",
                                         "1e-3",
                                         "--device",
                                         "cpu",
                                         "--sft",
                                         "--data-path",
                                         dir / "rows.jsonl",
                                         "--split",
                                         "1,0,0",
                                         "--tokenizer-type",
                                         "ByteLevelTokenizer",
                                         "--packing",
                                         packing,
                                         "--ranks",
                                         "2",
                                         "--tensor-model-parallel-size",
                                         "2"});
    EXPECT_EQ(outcome.code, 0) << packing << outcome.err;
    EXPECT_NE(outcome.out.find("iteration        3/       3"), std::string::npos) << outcome.out;
  }
}

// BERT's own tokens stand behind a vocabulary that has none of them.
TEST(PretrainData, BertOfAVocabularyWithoutItsTokens) {
  TempDir dir;
  write_data(dir / "text", 0, 60);
  std::ofstream vocabulary(dir / "vocab.json");
  vocabulary << "{";
  for (int i = 0; i < 32; ++i)
    vocabulary << (i ? ", " : "") << '"' << static_cast<char>('A' + i % 26) << i << "\": " << i;
  vocabulary << "}";
  vocabulary.close();
  std::ofstream(dir / "merges.txt") << "#version: 0.2\n";
  const Outcome outcome = run_command({"pretrain",
                                       "--model-type",
                                       "bert",
                                       "--num-layers",
                                       "2",
                                       "--hidden-size",
                                       "16",
                                       "--num-attention-heads",
                                       "2",
                                       "--seq-length",
                                       "16",
                                       "--max-position-embeddings",
                                       "16",
                                       "--micro-batch-size",
                                       "2",
                                       "--global-batch-size",
                                       "4",
                                       "--train-iters",
                                       "2",
                                       "--lr",
                                       "1e-3",
                                       "--device",
                                       "cpu",
                                       "--data-path",
                                       dir / "text",
                                       "--split",
                                       "1,0,0",
                                       "--bert-no-binary-head",
                                       "--tokenizer-type",
                                       "GPT2BPETokenizer",
                                       "--vocab-file",
                                       dir / "vocab.json",
                                       "--merge-file",
                                       dir / "merges.txt"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("they stand behind its vocabulary"), std::string::npos) << outcome.err;
}

// Documents of tokens have no roles: with --sft they are what they are without it.
TEST(PretrainData, ConversationsThatAreTokens) {
  TempDir dir;
  write_data(dir / "text", 0, 60);
  const std::vector<std::string> data = {
      "--data-path", dir / "text", "--split", "1,0,0", "--seq-length", "8", "--calculate-per-token-loss"};
  std::vector<std::string> sft = data;
  sft.insert(sft.end(), {"--sft", "--tokenizer-type", "NullTokenizer", "--vocab-size", "32"});
  EXPECT_EQ(train(dir, "sft", sft).losses, train(dir, "plain", data).losses);
}

}  // namespace
}  // namespace megatron
