// Files that are large enough for several threads to write and read them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "fault/odd_disks.h"
#include "megatron/checkpoint/block_reader.h"
#include "megatron/checkpoint/block_writer.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/kernels/split_float.h"
#include "support/error_of.h"
#include "support/gradcheck.h"
#include "support/page_cache.h"
#include "support/temp_dir.h"
#include "support/test_device.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::random_tensor;
using testing::TempDir;

constexpr int64_t kRows = 1800, kColumns = 1300;  // 9.4 MB of fp32: more than a block

// A tensor that is contiguous, one that is not, and masters beside parameters; on the GPU with
// MEGATRON_TEST_DEVICE=cuda.
class Blocks : public ::testing::Test {
 protected:
  Blocks() : ctx(testing::test_device()) {
    plain = random_tensor(ctx, {kRows, kColumns}, 1, DType::F32);
    wide = random_tensor(ctx, {kRows, kColumns}, 2, DType::F32);
    high = ctx.empty({kRows, kColumns}, DType::BF16);
    low = ctx.empty({kRows, kColumns}, DType::I16);
    ctx.kernels->copy(ctx.kernel_context(), {wide, high});
    const PackedState masters = split_state(high, low);
    masters.write(ctx, 0, wide.view({wide.numel()}));
    masters.read(ctx, 0, wide.view({wide.numel()}));  // exact halves lose a bit
  }
  std::vector<ShardedTensor> tensors() const {
    const ShardSpec whole = ShardSpec::whole({kRows, kColumns});
    return {{"plain", whole, plain},
            {"columns", ShardSpec::whole({kRows, kColumns - 3}), plain.slice(1, 3, kColumns)},
            {"high", whole, high},
            {"master", whole, {}, split_state(high, low).values}};
  }
  std::string save(const std::string& root, bool async) {
    std::string path;
    run_ranks(1, [&](int, ProcessGroup& world) {
      SaveRequest request;
      request.root = root;
      request.state.iteration = 1;
      request.tensors = tensors();
      if (!async) {
        path = save_checkpoint(ctx, world, request);
        return;
      }
      AsyncSaver saver;
      saver.start(ctx, world, request);
      saver.before_change(ctx);
      path = *saver.finish(world);
    });
    EXPECT_TRUE(verify_checkpoint(path).empty()) << verify_checkpoint(path).text();
    return path;
  }
  std::vector<float> part(const std::string& path, const char* name, const ShardSpec& shard,
                          DType dtype = DType::F32) {
    const Tensor target = ctx.full(shard.local_shape, dtype, -1);
    CheckpointReader(path).load(ctx, std::vector<ShardedTensor>{{name, shard, target}});
    return values(target);
  }
  std::vector<float> values(const Tensor& tensor) {
    Tensor copy = ctx.empty(tensor.shape(), DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {tensor, copy});
    return ctx.to_vector<float>(copy);
  }
  static void flip_bit(const std::string& path, std::streamoff from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const auto at = file.tellg();
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
  }

  RankContext ctx;
  Tensor plain, wide, high, low;
};

TEST_F(Blocks, ComeBackWholeAndInParts) {
  const Shape shape{kRows, kColumns};
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async);
    TempDir dir;
    const std::string path = save(dir.path(), async);
    EXPECT_EQ(part(path, "plain", ShardSpec::whole(shape)), values(plain));
    EXPECT_EQ(part(path, "master", ShardSpec::whole(shape)), values(wide)) << "joined on the host";
    EXPECT_EQ(part(path, "columns", ShardSpec::whole({kRows, kColumns - 3})),
              values(plain.slice(1, 3, kColumns)));
    // Rows are a run of the file, columns are not; and other dtypes than the file's.
    EXPECT_EQ(part(path, "plain", ShardSpec::split(shape, 0, 2, 3)),
              values(plain.slice(0, 2 * kRows / 3, kRows)));
    EXPECT_EQ(part(path, "plain", ShardSpec::split(shape, 1, 1, 2)),
              values(plain.slice(1, kColumns / 2, kColumns)));
    EXPECT_EQ(part(path, "high", ShardSpec::whole(shape)), values(high));
    Tensor rounded = ctx.empty(shape, DType::BF16);
    ctx.kernels->copy(ctx.kernel_context(), {plain, rounded});
    EXPECT_EQ(part(path, "plain", ShardSpec::whole(shape), DType::BF16), values(rounded));
  }
}

// One after the other, each with memory of its own while it is filled.
TEST_F(Blocks, PartsBeginAndEndInOrder) {
  TempDir dir;
  const std::string path = save(dir.path(), false);
  std::vector<std::string> calls;
  std::vector<LoadPart> parts;
  std::vector<float> sum;
  for (int64_t i = 0; i < 3; ++i) {
    const auto memory = std::make_shared<Tensor>();
    const ShardSpec shard = ShardSpec::split({kRows, kColumns}, 0, static_cast<int>(i), 3);
    LoadPart part{{"master", shard, {}}, DType::F32};
    part.begin = [&, i, memory, shard] {
      calls.push_back(fmt::format("begin {}", i));
      return *memory = ctx.empty(shard.local_shape, DType::F32);
    };
    part.end = [&, i, memory] {
      calls.push_back(fmt::format("end {}", i));
      const auto part = values(*memory);
      sum.insert(sum.end(), part.begin(), part.end());
      *memory = {};
    };
    parts.push_back(part);
  }
  CheckpointReader(path).load(ctx, parts);
  EXPECT_EQ(calls, (std::vector<std::string>{"begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"}));
  EXPECT_EQ(sum, values(wide));
}

// All of a chunk is compared, also what no rank needs of it.
TEST_F(Blocks, DamageIsFoundAnywhere) {
  TempDir dir;
  const std::string path = save(dir.path(), false), file = path + "/rank_00000.safetensors";
  // bf16 comes last in a file; before it the fp32 tensors, by name.
  const std::streamoff half = kRows * kColumns * 2, whole = 2 * half;
  for (const auto& [from_end, name] : {std::pair{half + 5, "plain"},
                                       {half + whole - 3, "plain"},
                                       {half + whole + 9, "master"},
                                       {std::streamoff{1}, "high"}}) {
    flip_bit(file, from_end);
    for (const int rank : {0, 2}) {
      const std::string message = error_of([&] {
        part(path, name, ShardSpec::split({kRows, kColumns}, 0, rank, 3));
      });
      EXPECT_EQ(message.find(fmt::format(
                    "the checkpoint {} is damaged: rank_00000.safetensors: {}: its checksum", path, name)),
                0u)
          << from_end << ": " << message;
    }
    flip_bit(file, from_end);
  }
  EXPECT_EQ(error_of([&] { part(path, "plain", ShardSpec::whole({kRows, kColumns})); }), "no error");
}

// Tensors of odd sizes share blocks of the file, whichever comes first.
TEST_F(Blocks, OfAFileHoldSeveralTensors) {
  const std::vector<std::pair<std::string, size_t>> sizes = {
      {"a", 3001}, {"b", (9u << 20) + 13}, {"c", 1}, {"d", (5u << 20) + 4097}, {"e", 8u << 20}};
  std::vector<SafetensorsItem> items;
  std::vector<std::vector<std::byte>> contents;
  for (const auto& [name, bytes] : sizes) {
    items.push_back({name, DType::U8, {static_cast<int64_t>(bytes)}});
    std::vector<std::byte>& values = contents.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>((i * 2654435761u + bytes) >> 9);
  }
  for (const bool backwards : {false, true}) {
    SCOPED_TRACE(backwards);
    TempDir dir;
    SafetensorsWriter file(dir / "x", items);
    BlockWriter blocks(file, nullptr);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t chosen = backwards ? sizes.size() - 1 - i : i;
      blocks.write(file.item(sizes[chosen].first), 0, contents[chosen]);
    }
    blocks.finish();
    file.commit();
    const SafetensorsFile written(dir / "x");
    EXPECT_EQ(written.header().size() % AtomicFile::kBlockAlignment, 0U);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto bytes = written.bytes(written.at(sizes[i].first));
      EXPECT_TRUE(std::ranges::equal(bytes, contents[i])) << sizes[i].first;
      EXPECT_EQ(file.checksum(sizes[i].first), checksum_of(contents[i]));
    }
  }
}

// Files are read from their beginning to their end, in whatever order the parts are given: of two tensors
// that are damaged, the one that comes first in the file is found.
TEST_F(Blocks, PartsComeInAnyOrder) {
  TempDir dir;
  const std::string path = save(dir.path(), false);
  std::vector<std::string> names = {"columns", "high", "plain"};
  std::vector<Tensor> loaded;
  const auto load = [&] {
    std::vector<LoadPart> parts;
    loaded.clear();
    for (const std::string& name : names) {
      const std::vector<ShardedTensor> all = tensors();
      const ShardedTensor& source = *std::ranges::find(all, name, &ShardedTensor::name);
      loaded.push_back(ctx.empty(source.shard.global_shape, source.tensor.dtype()));
      parts.push_back({{name, source.shard, loaded.back()}, source.tensor.dtype()});
    }
    CheckpointReader(path).load(ctx, parts);
  };
  const std::string file = path + "/rank_00000.safetensors";
  const std::streamoff half = kRows * kColumns * 2;
  do {
    SCOPED_TRACE(fmt::format("{} {} {}", names[0], names[1], names[2]));
    load();
    for (size_t i = 0; i < names.size(); ++i) {
      const std::vector<ShardedTensor> all = tensors();
      EXPECT_EQ(values(loaded[i]), values(std::ranges::find(all, names[i], &ShardedTensor::name)->tensor));
    }
    for (const std::streamoff from_end : {half + 5, std::streamoff{1}}) flip_bit(file, from_end);
    const std::string message = error_of(load);
    EXPECT_NE(message.find("rank_00000.safetensors: plain: its checksum"), std::string::npos) << message;
    for (const std::streamoff from_end : {half + 5, std::streamoff{1}}) flip_bit(file, from_end);
  } while (std::ranges::next_permutation(names).found);
}

// Blocks of every alignment, some of which follow each other, overlap, or lie apart, up to a file's odd end.
TEST_F(Blocks, AreReadPastTheCache) {
  TempDir dir;
  std::string contents((40u << 20) + 1234, ' ');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>((i * 2654435761u) >> 11);
  const std::vector<std::string> files = {dir / "a", dir / "b"};
  for (const std::string& file : files) testing::write_text(file, contents);
  struct Part {
    size_t file, begin, end;
  };
  const size_t mib = size_t{1} << 20, end = contents.size();
  const std::vector<Part> parts = {{0, 77, 8 * mib + 1},
                                   {0, 8 * mib + 1, 8 * mib + 4099},
                                   {0, 8 * mib + 4099, 8 * mib + 4100},
                                   {0, 8 * mib + 3, 8 * mib + 2000},
                                   {1, 16 * mib, 24 * mib},
                                   {0, 24 * mib, 32 * mib},
                                   {0, 32 * mib, 39 * mib + 5},
                                   {1, 5, 6},
                                   {0, 39 * mib + 5, end},
                                   {1, end - 4096, end}};
  for (const ReadWay way : {ReadWay::direct, ReadWay::cached}) {
    SCOPED_TRACE(static_cast<int>(way));
    for (const std::string& file : files) testing::drop_from_cache(file);
    std::vector<Checksum> sums(parts.size());
    std::vector<std::string> used(parts.size()), own(parts.size());
    std::vector<ReadBlock> blocks;
    std::vector<size_t> order;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      own[i].resize(part.end - part.begin);
      ReadBlock block{
          .file = part.file, .offset = part.begin, .bytes = part.end - part.begin, .sum = &sums[i]};
      if (i % 3 == 1) block.target = reinterpret_cast<std::byte*>(own[i].data());
      block.use = [&, i](const std::byte* data) {
        order.push_back(i);
        used[i].assign(reinterpret_cast<const char*>(data), parts[i].end - parts[i].begin);
      };
      blocks.push_back(std::move(block));
      blocks.push_back({.use = [&, i](const std::byte*) { order.push_back(100 + i); }});
    }
    RankContext host;
    read_blocks(files, blocks, host.stream, nullptr, way);
    for (size_t i = 0; i < parts.size(); ++i) {
      SCOPED_TRACE(i);
      const std::string expected = contents.substr(parts[i].begin, parts[i].end - parts[i].begin);
      EXPECT_TRUE(used[i] == expected);
      EXPECT_EQ(sums[i].hex(), checksum_of(std::as_bytes(std::span(expected))));
      EXPECT_TRUE(i % 3 != 1 || own[i] == expected) << "in its own place";
      EXPECT_EQ(order[2 * i], i);
      EXPECT_EQ(order[2 * i + 1], 100 + i);
    }
    if (way == ReadWay::direct && testing::can_be_direct(dir.path())) {
      // The end of a file that fills no block may have passed through.
      EXPECT_LT(testing::cached_pages(files[0]), 64u);
    } else if (way == ReadWay::cached && testing::keeps_pages(dir.path())) {
      EXPECT_GT(testing::cached_pages(files[0]), (12 * mib) / static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    }
    blocks[0].offset = end - blocks[0].bytes + 1;
    EXPECT_EQ(error_of([&] { read_blocks(files, blocks, host.stream, nullptr, way); }),
              fmt::format("{}: it ends before byte {}", files[0], end + 1));
  }
}

// What is in memory already is not read from the disk again.
TEST_F(Blocks, ComeFromTheCacheWhereItHasThem) {
  TempDir dir;
  if (!testing::can_be_direct(dir.path())) GTEST_SKIP() << "every file goes through the page cache here";
  constexpr size_t bytes = size_t{16} << 20;
  const std::vector<std::string> files = {dir / "a"};
  testing::write_text(files[0], std::string(bytes, 'a'));
  const auto disk_reads = [] {
    rusage use{};
    ::getrusage(RUSAGE_SELF, &use);
    return use.ru_inblock;
  };
  const auto read = [&] {
    std::vector<ReadBlock> blocks;
    for (size_t i = 0; i < 4; ++i) blocks.push_back({.file = 0, .offset = i * bytes / 4, .bytes = bytes / 4});
    RankContext host;
    const long before = disk_reads();
    read_blocks(files, blocks, host.stream, nullptr, ReadWay::direct);
    return disk_reads() - before;
  };
  testing::drop_from_cache(files[0]);
  if (read() < static_cast<long>(bytes / 512)) GTEST_SKIP() << "this system does not count what it reads";
  std::string text = testing::read_text(files[0]);
  const long again = read();
  if (testing::cached_pages(files[0]) < bytes / 4096) GTEST_SKIP() << "the system is short of memory";
  if (testing::pages_told(files[0]) < bytes / 4096)
    GTEST_SKIP() << "the system does not tell what its cache holds of this file";
  EXPECT_LT(again, static_cast<long>(bytes / 512));
}

// Direct reads that fail, as into memory that the disk cannot reach, are made through the page cache.
TEST_F(Blocks, AreReadThroughTheCacheWhereDirectReadsFail) {
  TempDir dir;
  constexpr size_t bytes = (size_t{8} << 20) + 1;  // of which a direct read asks for more
  const std::vector<std::string> files = {dir / "a"};
  testing::write_text(files[0], std::string(bytes, 'a'));
  testing::drop_from_cache(files[0]);
  Checksum sum;
  const std::vector<ReadBlock> blocks = {{.file = 0, .bytes = bytes, .sum = &sum}};
  RankContext host;
  std::string message;
  std::thread([&] {  // what it asks of the kernel holds for those that it begins
    if (!testing::fail_calls(__NR_pread64, EFAULT, bytes + 1)) return;
    message = error_of([&] { read_blocks(files, blocks, host.stream, nullptr, ReadWay::direct); });
  })
      .join();
  if (message.empty()) GTEST_SKIP() << "this kernel does not let a process break its disk";
  EXPECT_EQ(message, "no error");
  EXPECT_EQ(sum.hex(), checksum_of_file(files[0]));
}

// A checkpoint that the disk does not give is a damaged one, so that an older one is taken.
TEST_F(Blocks, WhatCannotBeReadIsDamaged) {
  TempDir dir;
  const std::string path = save(dir.path(), false);
  for (const bool verify : {true, false}) {
    SCOPED_TRACE(verify);
    std::string message;
    bool damaged = false;
    std::thread([&] {
      if (!testing::fail_calls(__NR_pread64, EIO)) return;
      RankContext host;
      const ShardSpec few = ShardSpec::split({kRows, kColumns}, 0, 3, 8);
      message = error_of([&] {
        CheckpointReader reader(path, verify);
        try {
          reader.load(host,
                      std::vector<ShardedTensor>{{"plain", few, host.empty(few.local_shape, DType::F32)}});
        } catch (const DamagedCheckpoint&) {
          damaged = true;
          throw;
        }
      });
    }).join();
    if (message.empty()) GTEST_SKIP() << "this kernel does not let a process break its disk";
    EXPECT_TRUE(damaged);
    EXPECT_EQ(message, "the checkpoint " + path + " is damaged: cannot read " + path +
                           "/rank_00000.safetensors: Input/output error");
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take memory themselves
// Whoever reads little has few buffers: 3 of 16 MiB, each with a huge page more where it begins within one.
TEST_F(Blocks, TakeLittleMemoryBesideWhatIsRead) {
  TempDir dir;
  constexpr size_t block = ReadBlock::kBytes, count = 20;
  const std::vector<std::string> files = {dir / "a"};
  testing::write_text(files[0], std::string(count * block + 20, 'a'));
  testing::drop_from_cache(files[0]);
  const auto most = [] {  // KiB
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
    return 0L;
  };
  std::vector<ReadBlock> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back({.file = 0, .offset = 20 + i * block, .bytes = block});
  blocks[0].use = [](const std::byte*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  RankContext host;
  if (!std::ofstream("/proc/self/clear_refs").write("5", 1).flush())
    GTEST_SKIP() << "the system does not tell the most memory since a moment";
  const long before = most();
  read_blocks(files, blocks, host.stream, nullptr, ReadWay::direct);
  EXPECT_LT(most() - before, 64L << 10);
}
#endif

}  // namespace
}  // namespace megatron
