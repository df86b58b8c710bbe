#include "megatron/checkpoint/safetensors_directory.h"

#include <gtest/gtest.h>

#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_text;

void write_one(const std::string& path, const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::vector<float> values(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    values[i] = static_cast<float>(names[i].size());
    tensors.emplace_back(names[i], Tensor::wrap(&values[i], {1}, DType::F32));
  }
  write_safetensors(path, tensors, {{"format", "pt"}});
}

void write_sharded(const TempDir& dir) {
  write_one(dir / "model-00001-of-00002.safetensors", {"a", "bb"});
  write_one(dir / "model-00002-of-00002.safetensors", {"ccc"});
  write_text(dir / "model.safetensors.index.json",
             R"({"metadata": {"total_size": 12}, "weight_map": {"a": "model-00001-of-00002.safetensors",)"
             R"( "bb": "model-00001-of-00002.safetensors", "ccc": "model-00002-of-00002.safetensors"}})");
}

TEST(SafetensorsDirectory, OneFile) {
  TempDir dir;
  EXPECT_EQ(error_of([&] { SafetensorsDirectory all(dir.path()); }),
            dir.path() + " holds no .safetensors file");
  write_one(dir / "weights.safetensors", {"x"});
  EXPECT_EQ(SafetensorsDirectory(dir.path()).names(), std::vector<std::string>{"x"});
  EXPECT_EQ(SafetensorsDirectory(dir / "weights.safetensors").names(), std::vector<std::string>{"x"});
  write_one(dir / "other.safetensors", {"y"});
  EXPECT_NE(error_of([&] { SafetensorsDirectory all(dir.path()); }).find("2 files that end in .safetensors"),
            std::string::npos);
  write_one(dir / "model.safetensors", {"z"});
  EXPECT_EQ(SafetensorsDirectory(dir.path()).names(), std::vector<std::string>{"z"});
}

TEST(SafetensorsDirectory, Shards) {
  TempDir dir;
  write_sharded(dir);
  const SafetensorsDirectory all(dir.path());
  EXPECT_EQ(all.names(), (std::vector<std::string>{"a", "bb", "ccc"}));
  EXPECT_EQ(all.files().size(), 2u);
  EXPECT_EQ(all.index_metadata().at("total_size").as_int(), 12);
  EXPECT_EQ(all.tensor("bb").data<float>()[0], 2);
  EXPECT_EQ(all.tensor("ccc").data<float>()[0], 3);
  EXPECT_EQ(all.at("a").shape, (Shape{1}));
  EXPECT_EQ(error_of([&] { all.tensor("cc"); }), dir.path() + " has no tensor 'cc': did you mean 'ccc'?");
}

TEST(SafetensorsDirectory, ListsEverythingThatIsWrong) {
  TempDir dir;
  write_sharded(dir);
  write_one(dir / "model-00002-of-00002.safetensors", {"stray"});
  write_text(dir / "model-00001-of-00002.safetensors", "cut");
  write_text(dir / "model.safetensors.index.json",
             R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../elsewhere.safetensors",)"
             R"( "ccc": "model-00002-of-00002.safetensors", "d": "gone.safetensors"}})");
  EXPECT_EQ(error_of([&] { SafetensorsDirectory all(dir.path()); }),
            dir / "model.safetensors.index.json" +
                " and its files do not fit together:\n"
                "  the file name '../elsewhere.safetensors' leads elsewhere\n"
                "  gone.safetensors is missing: 1 tensors should be in it, d for one\n  " +
                dir / "model-00001-of-00002.safetensors" +
                " is not a sound safetensors file:\n"
                "  it has 3 bytes, too few for a header: it was cut short\n"
                "  ccc should be in model-00002-of-00002.safetensors, but is not\n"
                "  stray is in model-00002-of-00002.safetensors, but not in the index");
  for (const char* text : {"", "[]", "{}", R"({"weight_map": {"a": 1}})"}) {
    write_text(dir / "model.safetensors.index.json", text);
    EXPECT_NE(
        error_of([&] { SafetensorsDirectory all(dir.path()); }).find("is not an index of safetensors files"),
        std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace megatron
