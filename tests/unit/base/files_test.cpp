#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <span>
#include <tuple>

#include "megatron/base/atomic_file.h"
#include "megatron/base/huge_pages.h"
#include "megatron/base/mapped_file.h"
#include "support/error_of.h"
#include "support/page_cache.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_text;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheContents) {
  TempDir dir;
  write_text(dir / "a", "hello");
  EXPECT_EQ(text_of(MappedFile(dir / "a")), "hello");
  write_text(dir / "empty", "");
  EXPECT_EQ(MappedFile(dir / "empty").bytes().size(), 0u);
}

TEST(MappedFile, OutlivesTheName) {
  TempDir dir;
  write_text(dir / "a", "hello");
  MappedFile file(dir / "a");
  write_file_atomically(dir / "a", "other");
  EXPECT_EQ(text_of(file), "hello");
  EXPECT_EQ(read_text(dir / "a"), "other");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  TempDir dir;
  EXPECT_EQ(error_of([&] { MappedFile file(dir / "absent"); }),
            "cannot open " + dir / "absent" + ": No such file or directory");
  EXPECT_NE(error_of([&] { MappedFile file(dir.path()); }).find("not a regular file"), std::string::npos);
}

TEST(AtomicFile, AppearsOnCommit) {
  TempDir dir;
  write_text(dir / "a", "old");
  AtomicFile file(dir / "a");
  std::string large(3 << 20, 'x');
  file.write("new");
  file.write(large);
  file.write("end");
  EXPECT_EQ(read_text(dir / "a"), "old");
  file.commit();
  EXPECT_EQ(read_text(dir / "a"), "new" + large + "end");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.partial"));
  EXPECT_NE(error_of([&] { file.write("more"); }), "no error");
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  TempDir dir;
  write_text(dir / "a", "old");
  { AtomicFile(dir / "a").write("new"); }
  EXPECT_EQ(read_text(dir / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.partial"));
}

TEST(AtomicFile, WritesAtOffsets) {
  TempDir dir;
  AtomicFile file(dir / "a");
  file.write_at(4, std::as_bytes(std::span("tail", 4)));
  file.write_at(0, std::as_bytes(std::span("head", 4)));
  file.commit();
  EXPECT_EQ(read_text(dir / "a"), "headtail");
}

// Whether the file system takes blocks past its cache or not, and however they lie in memory and file.
TEST(AtomicFile, WritesBlocksAtAnyPlace) {
  constexpr size_t unit = AtomicFile::kBlockAlignment, bytes = 5 * unit + 77;
  std::string contents(bytes, 'a');
  for (size_t i = 0; i < bytes; ++i) contents[i] = static_cast<char>('a' + i % 23);
  TempDir dir;
  alignas(unit) static std::array<std::byte, 6 * unit> memory;
  for (const size_t shift : {size_t{0}, size_t{8}}) {
    SCOPED_TRACE(shift);
    std::memcpy(memory.data() + shift, contents.data(), bytes);
    const auto all = std::span(memory).subspan(shift, bytes);
    AtomicFile file(dir / "x");
    file.bypass_cache();
    file.reserve(bytes);
    file.write_block(2 * unit, all.subspan(2 * unit));  // an end that fills no block
    file.write_block(unit - 3, all.subspan(unit - 3, unit + 3));
    file.write_block(0, all.first(unit - 3));
    file.commit();
    EXPECT_EQ(read_text(dir / "x"), contents);
  }
}

// Of blocks that begin where the disk's do, nothing stays in memory; of others all does.
TEST(AtomicFile, BlocksLeaveNothingInTheCache) {
  constexpr size_t unit = AtomicFile::kBlockAlignment, blocks = 8, bytes = blocks * unit;
  TempDir dir;
  if (!testing::can_be_direct(dir.path()) || !testing::keeps_pages(dir.path()))
    GTEST_SKIP() << "all files go through the page cache here, or none";
  alignas(unit) static std::array<std::byte, bytes + unit> memory;
  for (const auto& [shift, bypass, cached] :
       {std::tuple{size_t{0}, true, size_t{0}}, {size_t{0}, false, blocks}, {size_t{8}, true, blocks}}) {
    SCOPED_TRACE(fmt::format("shift {}, bypass {}", shift, bypass));
    AtomicFile file(dir / "x");
    if (bypass) file.bypass_cache();
    file.reserve(bytes);
    file.write_block(0, std::span(memory).subspan(shift, bytes));
    file.commit();
    EXPECT_EQ(testing::cached_pages(dir / "x"), cached);
  }
}

TEST(HugePages, BeginAtOneAndAreZero) {
  for (const size_t bytes : {size_t{1}, kHugePage, 3 * kHugePage + 5})
    for (const bool present : {false, true}) {
      const HugePages pages = make_huge_pages(bytes, present);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.get()) % kHugePage, 0U);
      EXPECT_EQ(std::ranges::count(std::span(pages.get(), bytes), std::byte{0}),
                static_cast<ptrdiff_t>(bytes));
      std::memset(pages.get(), 1, bytes);
    }
  EXPECT_THROW(make_huge_pages(~size_t{0} - 5), std::bad_alloc);
  EXPECT_THROW(make_huge_pages(size_t{1} << 60), std::bad_alloc);
}

TEST(AtomicFile, RoomIsAskedForFirst) {
  TempDir dir;
  {
    AtomicFile file(dir / "a");
    file.reserve(8);
    file.write_at(4, std::as_bytes(std::span("tail", 4)));
    file.write_at(0, std::as_bytes(std::span("head", 4)));
    file.commit();
  }
  EXPECT_EQ(read_text(dir / "a"), "headtail");
  AtomicFile huge(dir / "b");
  EXPECT_NE(error_of([&] { huge.reserve(size_t{1} << 60); }).find("cannot write"), std::string::npos);
}

TEST(AtomicFile, ReplacesTheRestOfAKilledAttempt) {
  TempDir dir;
  write_text(dir / "a.partial", "half of something longer than the new contents");
  write_file_atomically(dir / "a", "whole");
  EXPECT_EQ(read_text(dir / "a"), "whole");
}

TEST(AtomicFile, SecondWriterTakesOver) {
  TempDir dir;
  AtomicFile first(dir / "a");
  first.write("first");
  AtomicFile second(dir / "a");
  second.write("second");
  EXPECT_NE(error_of([&] { first.commit(); }).find("another writer"), std::string::npos);
  second.commit();
  EXPECT_EQ(read_text(dir / "a"), "second");
}

TEST(AtomicFile, SaysWhereItCannotWrite) {
  TempDir dir;
  EXPECT_NE(error_of([&] { write_file_atomically(dir / "absent/a", "x"); }).find("absent/a.partial"),
            std::string::npos);
}

// A disk that fills up, played by a limit on file sizes in a child process.
TEST(AtomicFile, FullDiskKeepsTheOldContents) {
  TempDir dir;
  write_text(dir / "a", "old");
  pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message = error_of([&] { write_file_atomically(dir / "a", std::string(1 << 20, 'x')); });
    bool clean = !std::filesystem::exists(dir / "a.partial");
    ::_exit(message.find("cannot write") != std::string::npos && clean ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read_text(dir / "a"), "old");
}

}  // namespace
}  // namespace megatron
