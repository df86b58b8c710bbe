#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "megatron/base/checksum.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_text;

// One rank, one tensor whose every element is the iteration.
std::string write_partial(const std::string& root, int64_t iteration) {
  RankContext ctx;
  const std::vector<ShardedTensor> tensors = {
      {"w", ShardSpec::whole({40, 25}), ctx.full({40, 25}, DType::F32, static_cast<double>(iteration))}};
  const std::vector<std::vector<ShardDescription>> described = {describe(tensors)};
  std::vector<StoredTensor> plan = plan_save(described);
  const std::string directory = begin_save(root, iteration);
  const std::vector<std::optional<WrittenFile>> files = {
      write_pieces(directory, 0, own_pieces(0, tensors, plan))};
  TrainingState state;
  state.iteration = iteration;
  write_index(directory, make_index(std::move(state), std::move(plan), files));
  return directory;
}

std::string save(const std::string& root, int64_t iteration) {
  write_partial(root, iteration);
  return publish_save(root, iteration);
}

// The iteration that a run started now would go on from, its contents checked.
int64_t resumed(const std::string& root) {
  RankContext ctx;
  CheckpointReader reader(root);
  const std::vector<ShardedTensor> tensors = {
      {"w", ShardSpec::whole({40, 25}), ctx.full({40, 25}, DType::F32, -1)}};
  reader.load(ctx, tensors);
  for (int64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(tensors[0].tensor.data<float>()[i], static_cast<float>(reader.state().iteration));
  EXPECT_TRUE(verify_checkpoint(reader.path()).empty()) << verify_checkpoint(reader.path()).text();
  return reader.state().iteration;
}

void flip_bit(const std::string& path, size_t byte, int bit) {
  std::string text = read_text(path);
  text[byte] = static_cast<char>(text[byte] ^ (1 << bit));
  write_text(path, text);
}

TEST(Directory, TheTrackerDecides) {
  TempDir dir;
  EXPECT_FALSE(latest_checkpoint(dir.path()).has_value());
  EXPECT_FALSE(latest_checkpoint(dir / "absent").has_value());
  save(dir.path(), 5);
  save(dir.path(), 12);
  EXPECT_EQ(read_text(dir / "latest_checkpointed_iteration.txt"), "12\n");
  EXPECT_EQ(resumed(dir.path()), 12);
  EXPECT_EQ(resumed(dir / "iter_0000005"), 5);
  write_text(dir / "latest_checkpointed_iteration.txt", "5");
  EXPECT_EQ(resumed(dir.path()), 5);
  for (const char* text : {"99", "", "release"}) {  // of no use: the newest complete one
    write_text(dir / "latest_checkpointed_iteration.txt", text);
    EXPECT_EQ(resumed(dir.path()), 12) << text;
  }
}

TEST(Directory, RefusesWhatIsNoCheckpoint) {
  TempDir dir;
  EXPECT_EQ(error_of([&] { resolve_checkpoint(dir / "absent"); }),
            dir / "absent" + ": there is no such checkpoint");
  EXPECT_NE(error_of([&] { resolve_checkpoint(dir.path()); }).find("holds no complete checkpoint"),
            std::string::npos);
}

TEST(Fault, DeathBeforeTheRenameKeepsTheOldOne) {
  TempDir dir;
  save(dir.path(), 1);
  write_partial(dir.path(), 2);  // complete but for its name
  EXPECT_EQ(resumed(dir.path()), 1);
  EXPECT_TRUE(fs::exists(dir / "iter_0000002.partial"));
  save(dir.path(), 3);  // clears the rest
  EXPECT_FALSE(fs::exists(dir / "iter_0000002.partial"));
  EXPECT_EQ(resumed(dir.path()), 3);
}

TEST(Fault, DeathBeforeTheTrackerKeepsTheOldOne) {
  TempDir dir;
  save(dir.path(), 1);
  save(dir.path(), 2);
  write_text(dir / "latest_checkpointed_iteration.txt", "1\n");
  EXPECT_EQ(resumed(dir.path()), 1);
  fs::remove(dir / "latest_checkpointed_iteration.txt");
  EXPECT_EQ(resumed(dir.path()), 2);
}

TEST(Fault, TheSameIterationIsReplacedWhole) {
  TempDir dir;
  save(dir.path(), 1);
  write_text(dir / "iter_0000001/stray", "of the old one");
  save(dir.path(), 1);
  EXPECT_EQ(resumed(dir.path()), 1);
  EXPECT_FALSE(fs::exists(dir / "iter_0000001/stray"));
  EXPECT_FALSE(fs::exists(dir / "iter_0000001.partial"));
  EXPECT_FALSE(fs::exists(dir / "iter_0000001.replaced"));
}

TEST(Fault, DeathDuringAReplacementIsMended) {
  TempDir dir;
  save(dir.path(), 1);
  fs::rename(dir / "iter_0000001", dir / "iter_0000001.replaced");  // and then it died
  EXPECT_EQ(resumed(dir.path()), 1);
  save(dir.path(), 2);
  EXPECT_TRUE(fs::exists(dir / "iter_0000001/index.json"));
  EXPECT_FALSE(fs::exists(dir / "iter_0000001.replaced"));
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 2u);

  fs::copy(dir / "iter_0000001", dir / "iter_0000001.replaced", fs::copy_options::recursive);
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 2u);
  save(dir.path(), 3);
  EXPECT_FALSE(fs::exists(dir / "iter_0000001.replaced"));
}

TEST(Fault, ACutFileIsRefused) {
  TempDir dir;
  const std::string file = save(dir.path(), 1) + "/rank_00000.safetensors";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  EXPECT_EQ(
      error_of([&] { CheckpointReader reader(dir.path()); }),
      fmt::format("the checkpoint {} is damaged:\n  rank_00000.safetensors: it has {} bytes, not the {} that "
                  "were written",
                  dir / "iter_0000001", size - 1, size));
  fs::remove(file);
  EXPECT_NE(error_of([&] { CheckpointReader reader(dir.path()); }).find("No such file"), std::string::npos);
}

TEST(Fault, EveryFlippedBitIsFound) {
  TempDir dir;
  const std::string path = save(dir.path(), 1), file = path + "/rank_00000.safetensors";
  const size_t size = fs::file_size(file);
  for (size_t byte = 0; byte < size; byte += 211) {
    flip_bit(file, byte, static_cast<int>(byte % 8));
    EXPECT_EQ(verify_checkpoint(path).count(), 1u) << byte;
    flip_bit(file, byte, static_cast<int>(byte % 8));
  }
  EXPECT_TRUE(verify_checkpoint(path).empty());
}

// A load compares too, and names file and tensor; whoever trusts the disk may switch that off.
TEST(Fault, ALoadRefusesAFlippedBit) {
  TempDir dir;
  const std::string path = save(dir.path(), 1), file = path + "/rank_00000.safetensors";
  const size_t size = fs::file_size(file);
  RankContext ctx;
  const std::vector<ShardedTensor> rows = {
      {"w", ShardSpec::split({40, 25}, 0, 0, 4), ctx.full({10, 25}, DType::F32, -1)}};
  const auto load = [&](bool verify) {
    return error_of([&] { CheckpointReader(path, verify).load(ctx, rows); });
  };
  EXPECT_EQ(load(true), "no error");
  flip_bit(file, size - 1, 3);
  EXPECT_EQ(
      load(true).find("the checkpoint " + path + " is damaged: rank_00000.safetensors: w: its checksum is "),
      0u)
      << load(true);
  EXPECT_EQ(load(false), "no error");
  flip_bit(file, size - 1, 3);
  flip_bit(file, 12, 1);  // of the header
  EXPECT_NE(load(true), "no error");
}

// Checkpoints of the first version have checksums of whole files alone.
TEST(Fault, IndexesOfTheFirstVersionAreRead) {
  TempDir dir;
  const std::string path = save(dir.path(), 1), index = path + "/index.json",
                    file = path + "/rank_00000.safetensors";
  Json json = Json::read(index);
  json["version"] = 1;
  Json entry = Json::object();
  entry["name"] = "rank_00000.safetensors";
  entry["bytes"] = static_cast<int64_t>(fs::file_size(file));
  entry["xxh64"] = checksum_of_file(file);
  json["files"] = Json(Json::Array{entry});
  std::erase_if(json["tensors"][0]["pieces"][0].as_object(),
                [](const auto& field) { return field.first == "xxh64"; });
  write_text(index, json.dump());
  write_text(index + ".xxh64", checksum_of_file(index));
  EXPECT_EQ(resumed(dir.path()), 1);
  flip_bit(file, fs::file_size(file) - 1, 3);
  EXPECT_EQ(verify_checkpoint(path).count(), 1u);
}

TEST(Fault, EveryFlippedBitOfTheIndexIsFound) {
  TempDir dir;
  const std::string path = save(dir.path(), 1), index = path + "/index.json";
  const size_t size = fs::file_size(index);
  for (size_t byte = 0; byte < size; byte += 11) {
    flip_bit(index, byte, static_cast<int>(byte % 8));
    EXPECT_THROW(CheckpointReader(dir.path()), ConfigError) << byte;
    EXPECT_EQ(verify_checkpoint(path).count(), 1u) << byte;
    flip_bit(index, byte, static_cast<int>(byte % 8));
  }
  EXPECT_EQ(resumed(dir.path()), 1);
  fs::remove(index + ".xxh64");
  EXPECT_THROW(CheckpointReader(dir.path()), ConfigError);
}

TEST(Fault, AnIndexThatDoesNotFitTogetherIsRefused) {
  TempDir dir;
  const std::string path = save(dir.path(), 1), index = path + "/index.json", whole = read_text(index);
  const auto rewrite = [&](const std::string& text) {
    write_text(index, text);
    write_text(index + ".xxh64", checksum_of(std::as_bytes(std::span(text))));
  };
  for (size_t size = 0; size + 1 < whole.size(); size += 7) {
    rewrite(whole.substr(0, size));
    EXPECT_THROW(read_index(path), ConfigError) << size;
  }
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    rewrite(text);
    return error_of([&] { read_index(path); });
  };
  EXPECT_NE(refusal("\"version\":2", "\"version\":3").find("its version is 3; this program reads 1 to 2"),
            std::string::npos);
  EXPECT_NE(refusal("\"extent\":[40,25]", "\"extent\":[39,25]").find("w: no piece holds [39:40, 0:25]"),
            std::string::npos);
  EXPECT_NE(refusal("\"extent\":[40,25]", "\"extent\":[41,25]").find("outside its shape [40, 25]"),
            std::string::npos);
  EXPECT_NE(refusal("\"offset\":[0,0]", "\"offset\":[0]").find("another number of dimensions"),
            std::string::npos);
  EXPECT_NE(refusal("\"file\":0", "\"file\":3").find("w: there is no file 3"), std::string::npos);
  EXPECT_NE(refusal("rank_00000", "../rank_00000").find("leads elsewhere"), std::string::npos);
  EXPECT_NE(refusal("\"shape\":[40,25]", "\"shape\":[4611686018427387904,25]").find("absurd shape"),
            std::string::npos);
  EXPECT_NE(refusal("\"shape\":[40,25]", "\"shape\":[-1,25]").find("absurd shape"), std::string::npos);
  EXPECT_NE(refusal("\"dtype\":\"fp32\"", "\"dtype\":\"fp33\"").find("fp33"), std::string::npos);
}

// A child saves again and again and is killed at some moment; whatever that moment was, the newest complete
// checkpoint is sound, and never older than what the child had reported done.
TEST(Fault, KilledWheneverItLikes) {
  TempDir dir;
  save(dir.path(), 0);
  for (int round = 0; round < 12; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      // Also saves the same iteration again, which replaces it.
      for (int64_t iteration = round * 1000 + 1;; ++iteration) {
        save(dir.path(), iteration);
        save(dir.path(), iteration);
        if (::write(pipe[1], &iteration, sizeof iteration) < 0) ::_exit(1);
      }
    }
    ::close(pipe[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + 7919 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    int64_t done = 0, last = 0;
    while (::read(pipe[0], &last, sizeof last) == sizeof last) done = last;
    ::close(pipe[0]);
    EXPECT_GE(resumed(dir.path()), done);
  }
}

}  // namespace
}  // namespace megatron
