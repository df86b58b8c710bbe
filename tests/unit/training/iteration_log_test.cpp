#include "megatron/training/log/iteration_log.h"
#include "megatron/training/log/metrics_file.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <cmath>

#include <csignal>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

IterationReport report(int64_t iteration, double loss, double milliseconds) {
  return {.iteration = iteration,
          .loss = loss,
          .grad_norm = loss,
          .terms = {{"mtp_1 loss", loss + 1}},
          .milliseconds = milliseconds,
          .tokens_per_second = 1e3 / milliseconds,  // a token each
          .model_tflops = 10 / milliseconds};
}

TEST(IterationMeans, LeaveOutSkippedUpdates) {
  IterationMeans means;
  means.add(report(1, 4, 100));
  IterationReport bad = report(2, std::nan(""), 100);
  bad.skipped = bad.nans = 1;
  means.add(bad);
  means.add(report(3, 2, 100));
  const IterationReport mean = means.report();
  EXPECT_EQ(mean.loss, 3);
  EXPECT_EQ(mean.skipped, 1);
  EXPECT_EQ(mean.milliseconds, 100);
  EXPECT_NE(iteration_line(mean, "", false)
                .find("number of skipped iterations:   1 | number of nan iterations:   1"),
            std::string::npos);
}

TEST(IterationMeans, AreThoseSinceTheLastLine) {
  IterationMeans means;
  means.add(report(1, 4, 100));
  EXPECT_EQ(means.report().loss, 4);
  EXPECT_EQ(means.report().model_tflops, 0.1);
  means.add(report(2, 2, 300));
  means.add(report(3, 3, 200));
  const IterationReport mean = means.report();
  EXPECT_EQ(mean.iteration, 3);
  EXPECT_EQ(mean.loss, 3);
  EXPECT_EQ(mean.grad_norm, 3) << "the last one's";
  EXPECT_EQ(mean.terms, (std::vector<LossTerm>{{"mtp_1 loss", 4}}));
  EXPECT_EQ(mean.milliseconds, 200);
  EXPECT_NEAR(mean.tokens_per_second, 5, 1e-12);
  EXPECT_NEAR(mean.model_tflops, 0.05, 1e-12);
  means.reset();
  means.add(report(4, 7, 10));
  EXPECT_EQ(means.report().loss, 7);
}

TEST(MetricsFile, ARowWithoutItsEndIsDropped) {
  testing::TempDir folder;
  const std::string path = folder / "m.jsonl";
  MetricsFile(path, 0).write(report(1, 4, 100));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  MetricsFile(path, 1).write(report(2, 4, 100));
  EXPECT_TRUE(read_text_file(path).starts_with("{\"iteration\":2,")) << read_text_file(path);
}

TEST(MetricsFile, WithoutRoomNoPartOfARowIsLeft) {
  testing::TempDir folder;
  const std::string path = folder / "m.jsonl";
  MetricsFile file(path, 0);
  EXPECT_TRUE(file.write(report(1, 4, 100)));
  const std::string first = read_text_file(path);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{first.size() + 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(file.write(report(2, 4, 100)));
  EXPECT_EQ(read_text_file(path), first);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(file.write(report(3, 4, 100)));
  EXPECT_NE(read_text_file(path).find("}\n{\"iteration\":3,"), std::string::npos) << read_text_file(path);
}

}  // namespace
}  // namespace megatron
