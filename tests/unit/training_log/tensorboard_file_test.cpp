#include "megatron/training/log/tensorboard_file.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "support/capture.h"
#include "unit/training_log/event_file.h"

namespace megatron {
namespace {

using testing::crc, testing::fields, testing::records, testing::summary_value;

TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc("123456789"), 0xE3069283u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc(""), 0u);
}

TEST(TensorBoardFile, HoldsScalars) {
  testing::TempDir dir;
  std::string path;
  {
    TensorBoardFile file(dir / "a/b", Log());
    path = file.path();
    file.scalar("lm loss", 10.5, 1);
    file.scalar("lm loss vs samples", 2.25, int64_t{1} << 40);
  }
  EXPECT_EQ(std::filesystem::path(path).filename().string().rfind("events.out.tfevents.", 0), 0u) << path;
  const std::vector<std::string> events = records(path);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(fields(events[0])[3].bytes, "brain.Event:2");
  EXPECT_GT(std::bit_cast<double>(fields(events[0])[1].number), 1.7e9);

  auto event = fields(events[1]), value = summary_value(events[1]);
  EXPECT_EQ(event[2].number, 1u);
  EXPECT_GT(std::bit_cast<double>(event[1].number), 1.7e9);
  EXPECT_EQ(value[1].bytes, "lm loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(value[2].number)), 10.5f);
  EXPECT_EQ(fields(events[2])[2].number, uint64_t{1} << 40);
}

TEST(TensorBoardFile, HoldsText) {
  testing::TempDir dir;
  TensorBoardFile file(dir.path(), Log());
  file.text("settings", "# Model", 7);
  file.flush();
  const std::vector<std::string> events = records(file.path());
  ASSERT_EQ(events.size(), 2u);
  auto value = summary_value(events[1]);
  EXPECT_EQ(value[1].bytes, "settings/text_summary");
  EXPECT_EQ(fields(value[8].bytes)[8].bytes, "# Model");
  EXPECT_EQ(fields(fields(value[9].bytes)[1].bytes)[1].bytes, "text");
}

TEST(TensorBoardFile, IsNewAtEveryStart) {
  testing::TempDir dir;
  TensorBoardFile first(dir.path(), Log()), second(dir.path(), Log());
  EXPECT_NE(first.path(), second.path());
}

TEST(TensorBoardFile, WritesWhatIsQueued) {
  testing::TempDir dir;
  TensorBoardFile file(dir.path(), Log(), {.queued_events = 3});
  for (int step = 0; step < 2; ++step) file.scalar("x", 1, step);
  EXPECT_EQ(records(file.path()).size(), 1u);
  file.scalar("x", 1, 2);
  EXPECT_EQ(records(file.path()).size(), 4u);

  TensorBoardFile eager(dir.path(), Log(), {.flush_interval = std::chrono::seconds(0)});
  eager.scalar("x", 1, 0);
  EXPECT_EQ(records(eager.path()).size(), 2u);
}

TEST(TensorBoardFile, TellsOnceOfAFolderThatCannotBe) {
  testing::TempDir dir;
  testing::write_text(dir / "file", "");
  Capture log;
  {
    TensorBoardFile file(dir / "file/tb", Log(LogLevel::info, log.file()));
    for (int step = 0; step < 5; ++step) file.scalar("x", 1, step);
  }
  const std::string said = log.text();
  EXPECT_NE(said.find("TensorBoard"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

// A file size limit stands for a full disk.
TEST(TensorBoardFile, LeavesNoPartOfARecord) {
  testing::TempDir dir;
  Capture log;
  std::string path;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    TensorBoardFile file(dir.path(), Log(LogLevel::info, log.file()), {.queued_events = 1});
    path = file.path();
    for (int step = 0; step < 100; ++step) file.scalar("a", 1, step);
    rlimit small = before;
    small.rlim_cur = std::filesystem::file_size(path) + 10;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int step = 0; step < 2; ++step) file.scalar("b", 1, step);
    setrlimit(RLIMIT_FSIZE, &before);
    file.scalar("c", 1, 0);
  }
  const std::string said = log.text();
  std::signal(SIGXFSZ, handler);
  const std::vector<std::string> events = records(path);
  ASSERT_EQ(events.size(), 102u);
  EXPECT_EQ(summary_value(events.back())[1].bytes, "c");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

}  // namespace
}  // namespace megatron
