#include "megatron/training/log/tensorboard_file.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>

#include "megatron/base/crc32c.h"
#include "support/capture.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

uint64_t little_endian(std::string_view& bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(bytes.at(i))} << (8 * i);
  bytes.remove_prefix(size);
  return value;
}

uint32_t unmasked(uint64_t masked) { return std::rotl(static_cast<uint32_t>(masked) - 0xa282ead8u, 15); }

uint32_t crc(std::string_view bytes) { return crc32c(std::as_bytes(std::span(bytes))); }

// The records of a file, their checksums checked.
std::vector<std::string> records(const std::string& path) {
  const std::string file = testing::read_text(path);
  std::vector<std::string> found;
  for (std::string_view rest = file; !rest.empty();) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const uint64_t length = little_endian(rest, 8);
    EXPECT_EQ(unmasked(little_endian(rest, 4)), crc(length_bytes));
    found.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    EXPECT_EQ(unmasked(little_endian(rest, 4)), crc(found.back()));
  }
  return found;
}

// The fields of a protobuf message by number; nested messages stay bytes.
struct Field {
  uint64_t number = 0;
  std::string bytes;
};
std::map<uint64_t, Field> fields(std::string_view message) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint64_t byte = little_endian(message, 1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  std::map<uint64_t, Field> found;
  while (!message.empty()) {
    const uint64_t key = varint();
    Field& field = found[key >> 3];
    switch (key & 7) {
      case 0:
        field.number = varint();
        break;
      case 1:
        field.number = little_endian(message, 8);
        break;
      case 5:
        field.number = little_endian(message, 4);
        break;
      case 2: {
        const uint64_t size = varint();
        field.bytes = message.substr(0, size);
        message.remove_prefix(size);
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return found;
    }
  }
  return found;
}

std::map<uint64_t, Field> summary_value(const std::string& event) {
  return fields(fields(fields(event)[5].bytes)[1].bytes);
}

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
