// Data as ModelOpt's scripts name it: a data set of the hub, or files of it.
#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/config/resolve/resolve.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;
using Words = std::vector<std::string>;

Resolved run_of(const Words& more) {
  Words words = {"--num-layers",
                 "2",
                 "--hidden-size",
                 "64",
                 "--seq-length",
                 "64",
                 "--lr",
                 "1e-3",
                 "--train-iters",
                 "3",
                 "--device",
                 "cpu",
                 "--ranks",
                 "1",
                 "--vocab-size",
                 "100",
                 "--tokenizer-type",
                 "NullTokenizer",
                 "--micro-batch-size",
                 "1",
                 "--num-attention-heads",
                 "4"};
  words.insert(words.end(), more.begin(), more.end());
  return resolve(read_sources(parse_command_line(words)));
}

std::string refusal(const Words& more) {
  try {
    run_of(more);
  } catch (const Refused& refused) {
    return refused.problems()[0].text();
  }
  return "";
}

class FinetuneFiles : public ::testing::Test {
 protected:
  FinetuneFiles() {
    std::filesystem::create_directories(folder_ / "data");
    for (const char* name : {"train-00001-of-00002.jsonl", "data/train-00000-of-00002.jsonl", "test.jsonl",
                             "trained.jsonl", "train.parquet"})
      testing::write_text(folder_ / name, "{}\n");
  }
  Words paths(const Words& names) const {
    Words result;
    for (const std::string& name : names) result.push_back(folder_ / name);
    return result;
  }
  TempDir folder_;
};

TEST_F(FinetuneFiles, AreThoseOfASplit) {
  const DatasetConfig train = run_of({"--finetune-hf-dataset", folder_.path()}).config.dataset;
  EXPECT_EQ(train.data_path, paths({"data/train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"}));
  EXPECT_TRUE(train.sft);
  EXPECT_FALSE(train.answer_only_loss);
  EXPECT_EQ(train.packing, Packing::offline);
  const DatasetConfig test =
      run_of({"--finetune-hf-dataset", folder_.path(), "--finetune-data-split", "test"}).config.dataset;
  EXPECT_EQ(test.data_path, paths({"test.jsonl"}));
  EXPECT_EQ(run_of({"--finetune-hf-dataset", folder_ / "test.jsonl"}).config.dataset.data_path,
            paths({"test.jsonl"}));
}

TEST_F(FinetuneFiles, AreNamedInTheirFolderOrByPath) {
  const Words wanted = paths({"test.jsonl", "trained.jsonl"});
  EXPECT_EQ(run_of({"--finetune-hf-dataset", folder_.path(), "--finetune-data-files", "test.jsonl",
                    "trained.jsonl"})
                .config.dataset.data_path,
            wanted);
  EXPECT_EQ(run_of({"--finetune-data-files", wanted[0], wanted[1]}).config.dataset.data_path, wanted);
}

// ModelOpt's script has them beside what its own rows need.
TEST_F(FinetuneFiles, StandBesideFlagsOfDocuments) {
  const Resolved resolved =
      run_of({"--finetune-hf-dataset", folder_.path(), "--reset-position-ids", "--reset-attention-mask",
              "--eod-mask-loss", "--split", "100,0,0", "--answer-only-loss", "--packing", "none"});
  const DatasetConfig& data = resolved.config.dataset;
  EXPECT_FALSE(data.reset_position_ids || data.reset_attention_mask || data.eod_mask_loss);
  EXPECT_TRUE(data.answer_only_loss);
  EXPECT_EQ(data.packing, Packing::none);
  EXPECT_EQ(std::ranges::count_if(resolved.notes,
                                  [](const std::string& note) {
                                    return note.find("conversations in one row are separate") !=
                                           std::string::npos;
                                  }),
            3);
}

TEST_F(FinetuneFiles, WhatIsNotThereIsRefused) {
  EXPECT_NE(refusal({"--finetune-hf-dataset", "nvidia/no-such-set"}).find("nothing is downloaded"),
            std::string::npos);
  EXPECT_NE(refusal({"--finetune-hf-dataset", folder_.path(), "--finetune-data-split", "valid"})
                .find("the folder has no valid.jsonl or valid-*.jsonl"),
            std::string::npos);
  EXPECT_NE(refusal({"--finetune-data-files", folder_ / "none.jsonl"}).find("there is no file"),
            std::string::npos);
  EXPECT_NE(refusal({"--finetune-data-files", folder_ / "train.parquet"}).find("is not of JSON lines"),
            std::string::npos);
  EXPECT_NE(refusal({"--finetune-data-files", folder_ / "test.jsonl", "--mock-data"}).find("other data"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron
