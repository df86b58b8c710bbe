#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/json.h"
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

std::vector<double> losses(const TempDir& dir, const std::string& name, std::vector<std::string> further) {
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
                                   metrics};
  args.insert(args.end(), further.begin(), further.end());
  const Outcome outcome = run_command(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<double> values;
  std::ifstream rows(metrics);
  for (std::string row; std::getline(rows, row);)
    values.push_back(Json::parse(row).at("lm_loss").as_double());
  return values;
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
  const std::vector<double> replayed =
      losses(dir, "replay", {"--replay", (dir / "replay.safetensors") + ":rows"});
  ASSERT_EQ(replayed.size(), static_cast<size_t>(kIterations));
  std::vector<std::string> with = blend;
  with.insert(with.end(), {"--seq-length", "8", "--data-cache-path", dir / "cache"});
  EXPECT_EQ(losses(dir, "data", with), replayed);
  EXPECT_EQ(losses(dir, "cached", with), replayed) << "from cached indices";
  with.insert(with.end(), {"--no-mmap-bin-files"});
  EXPECT_EQ(losses(dir, "pread", with), replayed);
  with.insert(with.end(), {"--ranks", "2", "--tensor-model-parallel-size", "1"});
  const std::vector<double> replicas = losses(dir, "dp2", with);
  ASSERT_EQ(replicas.size(), replayed.size());
  for (size_t i = 0; i < replayed.size(); ++i) EXPECT_NEAR(replicas[i], replayed[i], 2e-6);
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

}  // namespace
}  // namespace megatron
