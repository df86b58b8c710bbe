#include "megatron/cli/quickstart.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/checkpoint/load.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

// The whole engine: four ranks learn the project's own sources, and one rank goes on from their checkpoint.
TEST(Quickstart, LearnsMoreThanLetterFrequenciesAndWrites) {
  testing::TempDir directory;
  QuickstartOptions options;
  options.folder = MEGATRON_SOURCE_DIR;
  options.steps = 60;
  options.tensor_parallel = options.pipeline_parallel = 2;
  options.save = directory / "checkpoint";
  options.sample_tokens = 20;
  QuickstartReport report = quickstart(options, Log(LogLevel::error));
  EXPECT_NEAR(report.first_loss, std::log(256.0), 0.3) << "an untrained model knows nothing";
  EXPECT_LT(report.validation_loss, 0.97 * report.unigram_entropy);
  EXPECT_EQ(report.sample.size(), 20u);
  EXPECT_TRUE(verify_checkpoint(report.checkpoint).empty());
}

TEST(Quickstart, RefusesAFolderWithoutText) {
  testing::TempDir directory;
  QuickstartOptions options;
  options.folder = directory.path();
  EXPECT_THROW(quickstart(options, Log(LogLevel::error)), ConfigError);
}

}  // namespace
}  // namespace megatron
