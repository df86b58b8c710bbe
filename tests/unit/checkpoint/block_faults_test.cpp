// Devices, threads and disks that fail while blocks are read or written: an error for all that wait.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "fault/odd_disks.h"
#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/block_reader.h"
#include "megatron/checkpoint/block_writer.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::TempDir;

// A device that is lost while copies run on it.
class LostDevice final : public DeviceRuntime {
 public:
  Device device() const override { return kCpu; }
  void* acquire_memory(size_t bytes) override { return std::malloc(bytes); }
  void release_memory(void* data, size_t) override { std::free(data); }
  void synchronize(void*) override { throw Error("the device is lost"); }
  void copy_from_host(void* target, const void* source, size_t bytes, void*) override {
    std::memcpy(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, size_t bytes, void*) override {
    std::memcpy(target, source, bytes);
  }
};

TEST(BlockFaults, ADeviceThatIsLostEndsTheReader) {
  TempDir dir;
  constexpr size_t bytes = size_t{8} << 20;
  const std::vector<std::string> files = {dir / "a"};
  testing::write_text(files[0], std::string(bytes, 'a'));
  const auto device = std::make_shared<LostDevice>();
  const Stream stream(device);
  std::vector<ReadBlock> blocks = {{.file = 0, .bytes = bytes}};
  const auto read = [&] { return error_of([&] { read_blocks(files, blocks, stream, device); }); };
  EXPECT_EQ(read(), "the device is lost");
  blocks[0].use = [](const std::byte*) { throw Error("not here"); };
  EXPECT_EQ(read(), "not here");
}

// A system that gives some threads and no more, as containers do: an error, which a run outlives.
TEST(BlockFaults, MissingThreadsEndReaderAndWriter) {
  TempDir dir;
  constexpr size_t bytes = size_t{8} << 20;
  const std::vector<std::string> files = {dir / "a"};
  testing::write_text(files[0], std::string(bytes, 'a'));
  const std::vector<ReadBlock> blocks = {{.file = 0, .bytes = bytes}};
  RankContext host;
  bool limited = true;
  const auto with_threads = [&](int count, const std::function<void()>& work) {
    std::string message;
    std::thread([&] {
      limited = testing::limit_threads(count);
      try {
        if (limited) work();
        message = "no error";
      } catch (const std::exception& error) {
        message = error.what();
      }
    }).join();
    return message;
  };
  for (const int count : {0, 1}) {
    SCOPED_TRACE(count);
    const std::string read = with_threads(count, [&] { read_blocks(files, blocks, host.stream, nullptr); });
    if (!limited) GTEST_SKIP() << "this kernel does not let a process limit its threads";
    EXPECT_EQ(read, "Resource temporarily unavailable");
    EXPECT_EQ(with_threads(count,
                           [&] {
                             SafetensorsWriter file(dir / "b", {{"a", DType::U8, {bytes}}});
                             BlockWriter writer(file, nullptr);
                           }),
              "Resource temporarily unavailable");
  }
}

// A disk that fails or fills up under a thread that writes: the save fails with its words, whoever waits is
// released, and nothing is left of the file.
TEST(BlockFaults, ADiskThatFailsEndsTheWriter) {
  constexpr size_t bytes = size_t{64} << 20, block = size_t{1} << 20;
  const std::vector<std::byte> plain(bytes);
  const auto write = [&](const std::string& path, bool buffered, const std::function<bool()>& disk) {
    std::string message;
    // What a thread asks of the kernel holds for those that it begins.
    std::thread([&] {
      SafetensorsWriter file(path, {{"a", DType::U8, {bytes}}});
      if (!disk()) {
        message = "not allowed";
        return;
      }
      message = error_of([&] {
        BlockWriter blocks(file, nullptr);
        if (!buffered) blocks.write(0, 0, plain);
        for (size_t begin = 0; buffered && begin < bytes; begin += block) {
          BlockWriter::Buffer& buffer = blocks.buffer(block);
          std::memset(buffer.data(), 1, block);
          blocks.write(0, begin, buffer, block);
        }
        blocks.finish();
      });
      if (message == "no error") message = error_of([&] { file.commit(); });
    }).join();
    return message;
  };
  for (const bool buffered : {false, true}) {
    SCOPED_TRACE(buffered);
    TempDir dir;
    const std::string path = dir / "a", partial = path + ".partial";
    EXPECT_EQ(write(path, buffered, [] { return true; }), "no error");
    const size_t written = std::filesystem::file_size(path);
    std::string message =
        write(path, buffered, [] { return testing::fail_calls(__NR_pwrite64, EIO, block); });
    if (message == "not allowed") GTEST_SKIP() << "this kernel does not let a process break its disk";
    EXPECT_EQ(message, "cannot write " + partial + ": Input/output error");
    message = write(path, buffered, [] { return testing::fail_calls(__NR_fsync, EIO); });
    EXPECT_EQ(message, "cannot bring " + partial + " to the disk: Input/output error");
    // Room was promised, and then some of it is not there.
    message = write(path, buffered, [] { return testing::fail_calls(__NR_pwrite64, ENOSPC, block); });
    EXPECT_EQ(message, "cannot write " + partial + ": No space left on device");
    EXPECT_FALSE(std::filesystem::exists(partial));
    EXPECT_EQ(std::filesystem::file_size(path), written) << "what was there before stays";
  }
}

TEST(BlockFaults, AFaultOfOneThreadEndsAll) {
  TempDir dir;
  constexpr size_t bytes = size_t{64} << 20;
  {
    SafetensorsWriter file(dir / "a.safetensors", {{"a", DType::U8, {bytes}}});
    BlockWriter blocks(file, nullptr);
    const std::string message = error_of([&] {
      for (size_t begin = 0; begin < bytes; begin += size_t{1} << 20) {
        BlockWriter::Buffer& buffer = blocks.buffer(size_t{1} << 20);
        if (begin == size_t{5} << 20) buffer.fill = [] { throw Error("the disk is broken"); };
        blocks.write(0, begin, buffer, size_t{1} << 20);
      }
      blocks.finish();
    });
    EXPECT_EQ(message, "the disk is broken");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "nothing is left of the file";
  testing::write_text(dir / "b", std::string(20 << 20, 'b'));
  const std::vector<std::string> files = {dir / "b"};
  Checksum sum;
  std::vector<ReadBlock> blocks;
  for (size_t i = 0; i < 20; ++i)
    blocks.push_back({.file = 0, .offset = i << 20, .bytes = size_t{1} << 20, .sum = &sum});
  const auto read = [&] {
    RankContext host;
    return error_of([&] { read_blocks(files, blocks, host.stream, nullptr); });
  };
  EXPECT_EQ(read(), "no error");
  EXPECT_EQ(sum.hex(), checksum_of_file(dir / "b"));
  blocks[7].summed = [] { throw Error("no"); };
  EXPECT_EQ(read(), "no");
  blocks[7].summed = {};
  blocks[19].offset += 1;
  EXPECT_EQ(read(), dir / "b" + ": it ends before byte 20971521");
  blocks[19].offset -= 1;
  blocks[3].use = [](const std::byte*) { throw Error("not here"); };
  EXPECT_EQ(read(), "not here");
}

}  // namespace
}  // namespace megatron
