#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "megatron/training/run/run.h"
#include "support/capture.h"
#include "unit/training_log/event_file.h"

// What a run leaves for people, from flags to files.
namespace megatron {
namespace {

using testing::fields, testing::records, testing::summary_value;

constexpr std::string_view kTiny =
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--vocab-size 32 --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 "
    "--mock-data --device cpu --ranks 4 --tensor-model-parallel-size 2 --eval-interval 4 --eval-iters 1 ";

struct Losses : Callback {
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.is_first_rank()) train.push_back(view.report->loss);
    if (event == RunEvent::eval_end && view.is_first_rank()) validation.push_back(view.evaluation->loss);
  }
  std::vector<double> train, validation;
};

struct Seen {
  std::string out;
  std::shared_ptr<Losses> losses = std::make_shared<Losses>();
};

Seen train(const std::string& flags) {
  Seen seen;
  Capture out;
  RunSpec spec = run_spec(std::string(kTiny) + flags);
  spec.log = Log(LogLevel::error);
  spec.out = out.file();
  spec.callbacks = {seen.losses};
  run(spec);
  seen.out = out.text();
  return seen;
}

int lines_with(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Of every curve of a folder's files, its points.
using Curve = std::map<uint64_t, float>;
std::map<std::string, Curve> curves(const std::string& folder) {
  std::map<std::string, Curve> found;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    for (const std::string& event : records(file.path().string())) {
      auto value = summary_value(event);
      if (value.contains(2))
        found[value[1].bytes][fields(event)[2].number] =
            std::bit_cast<float>(static_cast<uint32_t>(value[2].number));
    }
  return found;
}

TEST(RunLog, TensorBoardHasMegatronLMsCurves) {
  testing::TempDir folder;
  const Seen seen = train(fmt::format(
      "--train-iters 6 --log-interval 2 --tensorboard-dir {} --log-timers-to-tensorboard "
      "--log-memory-to-tensorboard --log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard "
      "--log-throughput --timing-log-level 2",
      folder.path()));
  auto found = curves(folder.path());
  for (const char* tag :
       {"learning-rate", "batch-size", "lm loss", "loss-scale", "world-size", "grad-norm"}) {
    EXPECT_EQ(found[tag].size(), 6u) << tag;
    EXPECT_EQ(found[std::string(tag) + " vs samples"].size(), 6u) << tag;
  }
  for (const char* tag :
       {"mem-reserved-bytes", "mem-allocated-bytes", "mem-max-allocated-bytes", "mem-allocated-count"})
    EXPECT_EQ(found[tag].size(), 6u) << tag;
  for (const char* tag : {"iteration-time", "throughput", "forward-backward-time", "forward-compute-time",
                          "backward-compute-time", "optimizer-time", "batch-generator-time"}) {
    EXPECT_EQ(found[tag].size(), 3u) << tag;
    for (const auto& [step, value] : found[tag]) EXPECT_GT(value, 0) << tag;
  }
  ASSERT_EQ(seen.losses->train.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(found["lm loss"][i + 1], static_cast<float>(seen.losses->train[i]));
    EXPECT_EQ(found["lm loss vs samples"][4 * (i + 1)], static_cast<float>(seen.losses->train[i]));
  }
  EXPECT_EQ(found["world-size"][1], 4);
  EXPECT_EQ(found["lm loss validation"].begin()->second, static_cast<float>(seen.losses->validation.at(0)));
  EXPECT_FLOAT_EQ(found["lm loss validation ppl"][4], std::exp(found["lm loss validation"][4]));
  EXPECT_EQ(found["lm loss validation vs samples"].begin()->first, 16u);
}

TEST(RunLog, CurvesThatWereNotAskedForAreAbsent) {
  testing::TempDir folder;
  train(
      fmt::format("--train-iters 4 --tensorboard-dir {} --tensorboard-log-interval 2 "
                  "--no-log-loss-scale-to-tensorboard",
                  folder.path()));
  auto found = curves(folder.path());
  EXPECT_EQ(found["lm loss"].size(), 2u);
  for (const char* tag : {"loss-scale", "world-size", "mem-reserved-bytes", "iteration-time", "throughput",
                          "lm loss validation ppl", "num-zeros"})
    EXPECT_FALSE(found.contains(tag)) << tag;
}

// With two replicas of two tensor-parallel ranks, those of the first tell.
TEST(RunLog, MemoryIsToldTwiceAndWhenAskedFor) {
  const std::string out = train("--train-iters 9 --log-interval 3 --log-memory-interval 8").out;
  for (const char* place :
       {"[Rank 0] (after 1 iterations) memory (MB) | allocated: ", "[Rank 1] (after 1 iterations)",
        "[Rank 0] (after 3 iterations)", "[Rank 1] (after 3 iterations)", "[Rank 0] (after 8 iterations)"})
    EXPECT_EQ(lines_with(out, place), 1) << place << "\n" << out;
  EXPECT_EQ(lines_with(out, "[Rank "), 6) << out;
  EXPECT_EQ(lines_with(out, "Theoretical memory footprints: weight and optimizer="), 1) << out;
  EXPECT_EQ(lines_with(out, " max reserved: "), 6);
}

TEST(RunLog, TimersComeAtTheInterval) {
  const std::string out = train("--train-iters 4 --log-interval 2 --timing-log-level 1").out;
  EXPECT_EQ(lines_with(out, "(min, max) time across ranks (ms):"), 3) << out;  // setup, twice steps
  EXPECT_EQ(lines_with(out, "    model-and-optimizer-setup ......................: ("), 1) << out;
  EXPECT_EQ(lines_with(out, "    forward-backward ...............................: ("), 2) << out;
  EXPECT_EQ(lines_with(out, "    optimizer-inner-step ...........................: ("), 2) << out;
  EXPECT_EQ(lines_with(out, "forward-compute"), 0) << out;
  EXPECT_EQ(lines_with(train("--train-iters 1").out, "time across ranks"), 0);
}

TEST(RunLog, StragglersAreNamedWithoutTimers) {
  const std::string out = train("--train-iters 4 --log-interval 2 --log-straggler").out;
  EXPECT_EQ(lines_with(out, " stragglers | passes (ms): fastest rank "), 2) << out;
  EXPECT_EQ(lines_with(out, "time across ranks"), 0) << out;
}

TEST(RunLog, TheConfigurationIsKept) {
  testing::TempDir folder;
  train(fmt::format("--train-iters 1 --save-config-filepath {}", folder / "run.yaml"));
  const std::string flags = fmt::format("--config {} --train-iters 2", folder / "run.yaml");
  EXPECT_EQ(train(flags).losses->train.size(), 2u);
}

TEST(RunLog, EvaluationsAreFramed) {
  const Seen seen = train("--train-iters 4");
  const std::string line =
      fmt::format(" validation loss at iteration 4 | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
                  seen.losses->validation.at(0), std::exp(seen.losses->validation[0]));
  const std::string dashes(line.size() + 1, '-');
  EXPECT_NE(seen.out.find(dashes + "\n" + line + "\n" + dashes + "\n"), std::string::npos) << seen.out;
}

TEST(RunLog, LinesOfIterationsCanBeLeftOut) {
  EXPECT_EQ(lines_with(train("--train-iters 2 --log-interval 1").out, "consumed samples"), 2);
  EXPECT_EQ(lines_with(train("--train-iters 2 --log-interval 1 --skip-train-metrics-log").out, "consumed"),
            0);
}

TEST(RunLog, ProgressGoesOnOverStarts) {
  testing::TempDir folder;
  const std::string flags = fmt::format(
      "--log-progress --save {0} --load {0} --save-interval 2 --lr-decay-iters 4 ", folder.path());
  train(flags + "--train-iters 3");
  train(flags + "--train-iters 4");
  const std::string text = testing::read_text(folder / "progress.txt");
  EXPECT_EQ(lines_with(text, "\tJob ID: \t# GPUs: 4\tStarting job\n"), 2) << text;
  for (const int iteration : {2, 3, 4})
    EXPECT_EQ(lines_with(text, fmt::format("Saved checkpoint\tIteration: {}\tJob throughput: ", iteration)),
              1)
        << text;
  EXPECT_EQ(lines_with(text, "\tTokens (in billions): 0.00\n"), 3) << text;
}

}  // namespace
}  // namespace megatron
