#include "megatron/base/progress.h"

#include <gtest/gtest.h>

#include "support/capture.h"

namespace megatron {
namespace {

TEST(Progress, LineWithABar) {
  EXPECT_EQ(progress_line("training", 15, 300, "loss 3.58  5143 tokens/s", 227, 120),
            "training [#.......................] 15/300  loss 3.58  5143 tokens/s  left 3:47");
  EXPECT_EQ(progress_line("logits", 2, 2, "", 0, 120), "logits [########################] 2/2  left 0:00");
  EXPECT_EQ(progress_line("training", 1, 9, "", 3725, 120),
            "training [##......................] 1/9  left 1:02:05");
  EXPECT_EQ(progress_line("training", 1, 9, "a", -1, 120), "training [##......................] 1/9  a");
}

// A line that is as wide as the terminal wraps, and every redraw would leave a line behind.
TEST(Progress, LineFitsTheTerminal) {
  EXPECT_EQ(progress_line("training", 15, 300, "loss 3.58  5143 tokens/s", 227, 70),
            "training [..............] 15/300  loss 3.58  5143 tokens/s  left 3:47");
  EXPECT_EQ(progress_line("training", 15, 300, "loss 3.58  5143 tokens/s", 227, 59),
            "training 15/300  loss 3.58  5143 tokens/s  left 3:47");
  EXPECT_EQ(progress_line("training", 15, 300, "loss 3.58  5143 tokens/s", 227, 30),
            "training 15/300  loss 3.58  5");
  for (size_t columns = 0; columns < 130; ++columns)
    for (int64_t done : {0, 1, 299, 300, 301})
      EXPECT_LT(
          progress_line("converting", done, 300, "decoder.layers.0.mlp.linear_fc1.weight", 9, columns).size(),
          std::max<size_t>(1, columns));
}

TEST(Progress, WorkWithoutATerminalThatEndsAtOnceSaysNothing) {
  Capture err;
  Progress progress(Log(LogLevel::info, err.file()), "generating", 10);
  for (int i = 1; i <= 10; ++i) progress.update(i, "tokens");
  progress.clear();
  EXPECT_EQ(err.text(), "");
}

}  // namespace
}  // namespace megatron
