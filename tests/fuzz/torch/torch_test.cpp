// Spoiled pickles, zip archives and torch_dist directories: an Error or a value, never a crash, a hang,
// another exception, or memory out of proportion to the file.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/feed.h"
#include "megatron/base/error.h"
#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/torch/dist_writer.h"
#include "megatron/checkpoint/torch/pickle_writer.h"
#include "support/count_allocations.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

// Reading takes a node, a place on the stack and one in the memo for each byte at most, and messages.
size_t memory_bound(size_t file_size) { return 400 * file_size + (size_t{4} << 20); }

// Holds what a scope takes against the bound, also where it ends by an exception.
class BoundedMemory {
 public:
  explicit BoundedMemory(size_t file_size) : file_size_(file_size), before_(allocated) {}
  ~BoundedMemory() {
    EXPECT_LT(allocated - before_, memory_bound(file_size_)) << "an input of " << file_size_ << " bytes";
  }

 private:
  size_t file_size_, before_;
};

template <class Parse>
void fuzz_within_memory(Mutator mutator, int count, Parse parse) {
  fuzz(std::move(mutator), count, [&](const std::string& text) {
    const BoundedMemory bound(text.size());
    parse(text);
  });
}

const std::string kGolden = MEGATRON_GOLDEN_DIR "/megatron_ckpt/";

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Opcodes and numbers that readers care about.
std::vector<std::string> words() {
  const auto bytes = [](std::initializer_list<int> list) {
    std::string text;
    for (int byte : list) text += static_cast<char>(byte);
    return text;
  };
  return {"(",
          ")",
          "]",
          "}",
          "R",
          "b",
          "Q",
          "e",
          "u",
          "t",
          "2",
          "0",
          ".",
          bytes({0x81}),
          bytes({0x93}),
          bytes({0x94}),
          bytes({'h', 0}),
          bytes({'h', 3}),
          bytes({'X', 0xff, 0xff, 0xff, 0x7f}),
          bytes({0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
          bytes({0x8a, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}),
          "ctorch\nSize\n",
          "ccollections\nOrderedDict\n",
          "c_codecs\nencode\n",
          "ctorch._utils\n_rebuild_tensor_v2\n",
          "cbuiltins\nset\n",
          "cnumpy\ndtype\n",
          "cposix\nsystem\n",
          bytes({0xff, 0xff, 0xff, 0xff}),
          bytes({'P', 'K', 5, 6}),
          bytes({'P', 'K', 6, 7})};
}

TEST(FuzzTorch, Pickles) {
  TempDir dir;
  PickleWriter writer;
  writer.json(Json::parse(R"({"a": [1, 2.5, null, "b", {"c": [true, 3000000000]}]})"));
  fuzz_within_memory(
      Mutator(1, {read_text(kGolden + "llama/torch_dist/.metadata"), writer.finish()}, words()), 20000,
      [](const std::string& text) {
        const PickleDocument document(bytes_of(text), "file");
        to_json(document.root(), "file");
      });
}

TEST(FuzzTorch, Metadata) {
  DistMetadata small;
  small.tensors.push_back(
      {"w", DType::F32, {4, 6}, {{{{0, 0}, {2, 6}}, {"a", 0, 500}}, {{{2, 0}, {2, 6}}, {"a", 500, 500}}}});
  small.objects.push_back({"common_state/shard_0_1", {"a", 1000, 10}});
  fuzz_within_memory(
      Mutator(2, {read_text(kGolden + "llama/torch_dist/.metadata"), dist_metadata_pickle(small)}, words()),
      3000, [](const std::string& text) { parse_dist_metadata(bytes_of(text), "file"); });
}

TEST(FuzzTorch, Archives) {
  TempDir dir;
  // The first items of a checkpoint: an archive of a tensor and one of the run's state.
  DistWriter writer(dir.path(), 1 << 30);
  writer.add_tensor("w", DType::F32, {4, 6});
  writer.add_chunk({{0, 0}, {4, 6}},
                   [](const Box&, const Tensor& target) { std::memset(target.raw(), 1, target.bytes()); });
  writer.finish();
  const std::string tensor = read_text(dir / "__0_0.distcp"), path = dir / "x.pt";
  const MegatronCheckpoint golden = open_megatron(kGolden + "llama/torch_dist");
  const DistCheckpoint files(kGolden + "llama/torch_dist");
  const DistPlace& place = files.find_object("common_state/shard_0_1")->place;
  const std::string state =
      read_text(kGolden + "llama/torch_dist/" + place.file).substr(place.offset, place.size);
  fuzz_within_memory(Mutator(3, {tensor, state}, words()), 4000, [&](const std::string& text) {
    fs::remove(path);
    write_text(path, text);
    const TorchArchive archive(FileSlice::whole(path), path);
    if (!archive.root().is(PickleKind::tensor)) return void(to_json(archive.root(), path));
    const Tensor value = archive.tensor(archive.root(), "w");
    if (!value.is_contiguous()) return;
    const Tensor copy = host_tensor(value.shape(), value.dtype());
    copy_host(value, copy);
  });
}

// All of it: what .metadata says of the files that are there.
TEST(FuzzTorch, Directories) {
  TempDir dir;
  const std::string source = kGolden + "moe_top2/torch_dist/";
  for (const char* name : {"metadata.json", "__0_0.distcp"}) fs::copy_file(source + name, dir / name);
  const size_t data = fs::file_size(dir / "__0_0.distcp");
  fuzz_within_memory(Mutator(4, {read_text(source + ".metadata")}, words()), 1500,
                     [&](const std::string& text) {
                       fs::remove(dir / ".metadata");
                       write_text(dir / ".metadata", text);
                       const size_t before = allocated;
                       const MegatronCheckpoint checkpoint = open_megatron(dir.path());
                       RankContext ctx;
                       size_t bytes = 0;
                       for (const MegatronTensor& tensor : checkpoint.tensors) {
                         const Tensor whole = host_tensor(tensor.shape, tensor.dtype);
                         bytes += whole.bytes();
                         tensor.read(ctx, ShardSpec::whole(tensor.shape), whole);
                       }
                       EXPECT_LE(bytes, 2 * data);
                       allocated = before;  // opening reads the same archives again and again
                     });
}

}  // namespace
}  // namespace megatron::testing
