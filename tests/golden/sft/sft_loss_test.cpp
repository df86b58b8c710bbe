#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

// `finetune --sft` on conversations follows transformers, which takes the answers from its chat template's
// generation blocks and trains with torch's AdamW in fp32. tests/upstream/sft_loss.py made the files.
namespace megatron {
namespace {

using testing::golden_json;
using testing::golden_path;

constexpr double kTolerance = 1e-5;

class SftLoss : public ::testing::TestWithParam<std::string> {
 protected:
  // The losses of ten steps of `batch` rows, or bins where packing is offline.
  std::vector<double> finetune(int64_t batch, const std::vector<std::string>& further,
                               const std::string& data = golden_path("sft", "rows.jsonl")) const {
    const std::string metrics = dir_ / "metrics.jsonl";
    std::filesystem::remove(metrics);
    const std::string model = std::filesystem::path(golden_path("sft", "model/config.json")).parent_path();
    std::vector<std::string> args = {"finetune", "--sft", "--device", "cpu"};
    const std::vector<std::pair<std::string, std::string>> settings = {
        {"--hf", model},
        {"--data-path", data},
        {"--split", "1,0,0"},
        {"--tokenizer-type", "HuggingFaceTokenizer"},
        {"--tokenizer-model", model},
        {"--seq-length", "96"},
        {"--global-batch-size", std::to_string(batch)},
        {"--train-iters", "10"},
        {"--lr", "2e-3"},
        {"--lr-decay-style", "constant"},
        {"--adam-beta2", "0.95"},
        {"--weight-decay", "0.1"},
        {"--eval-iters", "0"},
        {"--log-interval", "1"},
        {"--metrics", metrics}};
    for (const auto& [flag, value] : settings) args.insert(args.end(), {flag, value});
    args.insert(args.end(), further.begin(), further.end());
    if (GetParam() == "TP2xPP2")
      args.insert(args.end(), {"--ranks", "4", "--tensor-model-parallel-size", "2",
                               "--pipeline-model-parallel-size", "2"});
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> losses;
    std::ifstream rows(metrics);
    for (std::string line; std::getline(rows, line);)
      losses.push_back(Json::parse(line, metrics).at("lm_loss").as_double());
    return losses;
  }

  double largest_difference(const std::vector<double>& losses, const std::string& rows) const {
    const Json expected = golden_json("sft", "losses").at(rows);
    EXPECT_EQ(losses.size(), expected.size());
    double largest = losses.size() == expected.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(losses.size(), expected.size()); ++i)
      largest = std::max(largest, std::abs(losses[i] - expected.as_array()[i].as_double()));
    return largest;
  }

  testing::TempDir dir_;
};

TEST_P(SftLoss, UnpackedAsTransformers) {
  EXPECT_LE(largest_difference(finetune(6, {"--micro-batch-size", "2"}), "some"), kTolerance);
}

TEST_P(SftLoss, PackedInTheBatchAsTransformers) {
  const auto losses = finetune(6, {"--micro-batch-size", "2", "--packing", "batch"});
  EXPECT_LE(largest_difference(losses, "some"), kTolerance);
}

TEST_P(SftLoss, PackedOfflineAsTransformers) {
  const std::vector<std::string> offline = {
      "--micro-batch-size", "1", "--packing", "offline", "--packed-metadata", dir_ / "packed.json"};
  finetune(1, offline);
  const double factor = Json::read(dir_ / "packed.json").as_array()[0].at("packing_factor").as_double();
  const auto bins = static_cast<int64_t>(std::lround(24 / factor));
  EXPECT_LT(bins, 24);
  EXPECT_LE(largest_difference(finetune(bins, offline), "all"), kTolerance);
}

// Packed once, by a command of its own, into the file that Bridge reads too.
TEST_P(SftLoss, PackedFileAsTransformers) {
  const std::string model = std::filesystem::path(golden_path("sft", "model/config.json")).parent_path();
  const std::string packed = dir_ / "packed.parquet", metadata = dir_ / "packed.json";
  const Outcome outcome = run_command({"data", "pack", "--data-path", golden_path("sft", "rows.jsonl"),
                                       "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", model,
                                       "--seq-length", "96", "--out", packed, "--packed-metadata", metadata});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const double factor = Json::read(metadata).as_array()[0].at("packing_factor").as_double();
  const auto losses = finetune(static_cast<int64_t>(std::lround(24 / factor)),
                               {"--micro-batch-size", "1", "--packing", "offline"}, packed);
  EXPECT_LE(largest_difference(losses, "all"), kTolerance);
}

TEST_P(SftLoss, PromptsCountWhereAsked) {
  const auto losses = finetune(6, {"--micro-batch-size", "2", "--no-answer-only-loss"});
  EXPECT_GT(largest_difference(losses, "some"), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SftLoss, ::testing::Values("OneRank", "TP2xPP2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace megatron
