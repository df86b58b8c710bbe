#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "megatron/base/text_file.h"
#include "megatron/checkpoint/checkpoint_kind.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/torch/dist_checkpoint.h"
#include "megatron/checkpoint/torch/dist_writer.h"
#include "megatron/checkpoint/torch/pickle_writer.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

std::string contents(const std::string& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// A directory with one object and one fp32 tensor [4, 6], numbered row by row, in two chunks of its rows.
void write_example(const std::string& directory, int64_t file_bytes = int64_t{1} << 30) {
  fs::create_directories(directory);
  DistWriter writer(directory, file_bytes);
  PickleWriter object;
  object.json(Json::parse(R"([{"iteration": 7}])"));
  writer.add_object("common_state/shard_0_1", object.finish());
  writer.add_tensor("w", DType::F32, {4, 6});
  for (int64_t row : {0, 2})
    writer.add_chunk({{row, 0}, {2, 6}}, [&](const Box& within, const Tensor& target) {
      for (int64_t i = 0; i < target.numel(); ++i)
        target.data<float>()[i] = static_cast<float>((row + within.offset[0]) * 6 + i);
    });
  writer.finish();
}

void expect_refused(const std::string& directory, std::string_view words) {
  try {
    const DistCheckpoint checkpoint(directory);
    for (const DistTensor& tensor : checkpoint.metadata().tensors)
      for (const DistChunk& chunk : tensor.chunks) checkpoint.chunk(tensor, chunk);
    FAIL() << "taken, though " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(TorchDist, WhatIsWrittenIsRead) {
  TempDir dir;
  for (int64_t file_bytes : {int64_t{1} << 30, int64_t{1}}) {
    const std::string path = dir / std::to_string(file_bytes);
    write_example(path, file_bytes);
    EXPECT_EQ(fs::exists(path + "/__0_1.distcp"), file_bytes == 1);
    const DistCheckpoint checkpoint(path);
    const DistTensor& tensor = *checkpoint.find_tensor("w");
    EXPECT_EQ(tensor.shape, Shape({4, 6}));
    ASSERT_EQ(tensor.chunks.size(), 2u);
    for (const DistChunk& chunk : tensor.chunks) {
      const Tensor value = checkpoint.chunk(tensor, chunk);
      for (int64_t i = 0; i < 12; ++i)
        EXPECT_EQ(value.data<float>()[i], static_cast<float>(chunk.box.offset[0] * 6 + i));
    }
    const auto object = checkpoint.object(*checkpoint.find_object("common_state/shard_0_1"));
    EXPECT_EQ(object->root().items.at(0)->find("iteration")->integer, 7);
  }
}

TEST(TorchDist, DamageIsNamed) {
  TempDir dir;
  const std::string path = dir / "c", data = path + "/__0_0.distcp";
  write_example(path);
  const std::string good = contents(data), metadata = contents(path + "/.metadata");

  write_text(data, good.substr(0, good.size() - 1));
  expect_refused(path, "__0_0.distcp: w is cut short");
  fs::remove(data);
  expect_refused(path, "__0_0.distcp");
  write_text(data, good);

  std::string other = metadata;
  other.replace(other.find("__0_0.distcp"), 12, "../../passwd");
  write_text(path + "/.metadata", other);
  expect_refused(path, "outside of the checkpoint's folder");

  // A chunk less: the second one's rows are said to be the first one's.
  other = metadata;
  const size_t chunk = other.find("sizes", other.find("chunks"));
  const size_t size = other.find('J', chunk);
  other[size + 1] = 1;
  write_text(path + "/.metadata", other);
  expect_refused(path, "w: no piece holds");

  write_text(path + "/.metadata", metadata.substr(0, metadata.size() / 2));
  expect_refused(path, "ends early");
}

TEST(TorchDist, OldFormatGetsAdvice) {
  TempDir dir;
  const std::string path = dir / "old.pt";
  write_text(path, std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15));
  try {
    TorchArchive archive(FileSlice::whole(path), path);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("torch.save again"), std::string::npos) << error.what();
  }
}

TEST(ZipWriter, Crc32IsThatOfZip) {
  const std::string_view text = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(text))), 0xcbf43926u);
  const std::string_view longer = "The quick brown fox jumps over the lazy dog";
  const auto bytes = std::as_bytes(std::span(longer));
  EXPECT_EQ(crc32(bytes), 0x414fa339u);
  EXPECT_EQ(crc32(bytes.subspan(11), crc32(bytes.first(11))), 0x414fa339u);
}

TEST(CheckpointKind, ByContents) {
  TempDir dir;
  EXPECT_EQ(recognise_checkpoint(dir / "nothing").kind, CheckpointKind::none);
  fs::create_directories(dir / "empty");
  EXPECT_EQ(recognise_checkpoint(dir / "empty").kind, CheckpointKind::none);

  write_example(dir / "run/iter_0000007");
  EXPECT_EQ(recognise_checkpoint(dir / "run").kind, CheckpointKind::none);  // no tracker yet
  EXPECT_EQ(recognise_checkpoint(dir / "run/iter_0000007").kind, CheckpointKind::torch_dist);
  write_text(dir / "run/latest_checkpointed_iteration.txt", "7\n");
  const FoundCheckpoint found = recognise_checkpoint(dir / "run");
  EXPECT_EQ(found.kind, CheckpointKind::torch_dist);
  EXPECT_EQ(found.path, dir / "run/iter_0000007");
  write_text(dir / "run/latest_checkpointed_iteration.txt", "../../x");
  EXPECT_EQ(recognise_checkpoint(dir / "run").kind, CheckpointKind::none);

  fs::create_directories(dir / "old/release/mp_rank_00");
  write_text(dir / "old/release/mp_rank_00/model_optim_rng.pt", "x");
  write_text(dir / "old/latest_checkpointed_iteration.txt", "release");
  EXPECT_EQ(recognise_checkpoint(dir / "old").kind, CheckpointKind::torch);

  fs::create_directories(dir / "hf");
  write_text(dir / "hf/config.json", "{}");
  EXPECT_EQ(recognise_checkpoint(dir / "hf").kind, CheckpointKind::none);
  write_text(dir / "hf/model.safetensors", "x");
  EXPECT_EQ(recognise_checkpoint(dir / "hf").kind, CheckpointKind::hugging_face);
}

}  // namespace
}  // namespace megatron::testing
