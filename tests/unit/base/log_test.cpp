#include "megatron/base/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/capture.h"

namespace megatron {
namespace {

TEST(Log, ShowsItsLevelAndWhatIsWorse) {
  Capture err;
  const Log log(LogLevel::warning, err.file());
  log.error("lost {} of {}", 1, 2);
  log.warning("slow");
  log.info("iteration 1");
  log.debug("detail");
  EXPECT_EQ(err.text(), "error: lost 1 of 2\nwarning: slow\n");
}

TEST(Log, CopiesDifferInLevel) {
  Capture err;
  const Log log(LogLevel::info, err.file());
  log.with_level(LogLevel::debug).debug("detail");
  log.debug("hidden");
  EXPECT_EQ(err.text(), "detail\n");
}

TEST(Log, LinesOfThreadsStayWhole) {
  Capture err;
  const std::string word(200, 'x');
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, log = Log(LogLevel::info, err.file())] {
      for (int i = 0; i < 50; ++i) log.info("{}", word);
    });
  for (std::thread& rank : ranks) rank.join();
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += word + "\n";
  EXPECT_EQ(err.text(), expected);
}

}  // namespace
}  // namespace megatron
