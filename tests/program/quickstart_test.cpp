#include "megatron/cli/commands/quickstart.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/cli/command.h"
#include "support/capture.h"
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
  options.out = directory / "out";
  options.sample_tokens = 20;
  QuickstartReport report = quickstart(options, Log(LogLevel::error));
  EXPECT_NEAR(report.first_loss, std::log(2048.0), 0.3) << "an untrained model knows nothing";
  EXPECT_LT(report.validation_loss, 0.97 * report.unigram_entropy);
  EXPECT_GE(report.sample.size(), 20u);
  EXPECT_TRUE(verify_checkpoint(resolve_checkpoint(report.checkpoint)).empty());
}

TEST(Quickstart, RefusesAFolderWithoutText) {
  testing::TempDir directory;
  QuickstartOptions options;
  options.out = directory / "out";
  options.folder = directory.path();
  EXPECT_THROW(quickstart(options, Log(LogLevel::error)), ConfigError);
  options.folder = directory / "absent";
  EXPECT_THROW(quickstart(options, Log(LogLevel::error)), ConfigError);
}

// A layout that does not fit is refused with advice, as a refused configuration, before any rank is started.
TEST(Quickstart, RefusesALayoutThatDoesNotFit) {
  for (std::vector<std::string> args :
       {std::vector<std::string>{"quickstart"}, {"bench", "train", "gpt-10m"}}) {
    args.insert(args.end(), {"--tensor-model-parallel-size", "5"});
    Capture out, err;
    EXPECT_EQ(run_cli(commands(), args, out.file(), err.file()), 1) << args[0];
    for (const char* word : {"tensor_model_parallel_size = 5", "num_attention_heads", "use 1"})
      EXPECT_NE(err.text().find(word), std::string::npos) << args[0] << ": " << err.text();
  }
}

}  // namespace
}  // namespace megatron
