#include <gtest/gtest.h>

#include <cmath>

#include "megatron/training/log/iteration_log.h"

namespace megatron {
namespace {

TEST(IterationLine, IsMegatronLMs) {
  IterationReport report{.iteration = 10,
                         .iterations = 500,
                         .consumed_samples = 640,
                         .global_batch_size = 64,
                         .loss = 2.5,
                         .grad_norm = 1.25,
                         .learning_rate = 1e-4,
                         .terms = {{"load_balancing_loss", 1.5}},
                         .milliseconds = 123.45,
                         .model_tflops = 400.26};
  EXPECT_EQ(
      iteration_line(report, "", false),
      " iteration       10/     500 | consumed samples:          640 | elapsed time per iteration (ms): "
      "123.5 | learning rate: 1.000000E-04 | global batch size:    64 | lm loss: 2.500000E+00 | "
      "load_balancing_loss: 1.500000E+00 | loss scale: 1.0 | grad norm: 1.250 | number of skipped "
      "iterations:   0 | number of nan iterations:   0 |");
  report.loss_scale = 65536;
  report.num_zeros = 12;
  report.params_norm = 20.5;
  report.skipped_samples = 64;
  const std::string line = iteration_line(report, "2026-01-31 23:59:59.000000", true);
  EXPECT_EQ(line.rfind(" [2026-01-31 23:59:59.000000] iteration ", 0), 0u) << line;
  for (const char* part :
       {"| skipped samples:           64 | elapsed",
        "| throughput per GPU (TFLOP/s/GPU): 400.3 | learning rate",
        "| loss scale: 65536.0 | grad norm: 1.250 | num zeros: 12 | params norm: 20.500 | number of skipped"})
    EXPECT_NE(line.find(part), std::string::npos) << part << "\n" << line;
}

// As in Megatron-LM: gradients that overflowed have no norm. One that is NaN without that shows.
TEST(IterationLine, ASkippedUpdateHasNoNorm) {
  IterationReport report{.loss = 2.5, .grad_norm = std::nan(""), .loss_scale = 4096, .skipped = 1};
  std::string line = iteration_line(report, "", false);
  EXPECT_EQ(line.find("grad norm"), std::string::npos) << line;
  report.grad_norm = 1.25;  // of the last of several steps
  line = iteration_line(report, "", false);
  EXPECT_NE(line.find("| grad norm: 1.250 |"), std::string::npos) << line;
  report.skipped = 0;
  report.grad_norm = std::nan("");
  line = iteration_line(report, "", false);
  EXPECT_NE(line.find("| grad norm: nan |"), std::string::npos) << line;
}

}  // namespace
}  // namespace megatron
