#include "megatron/base/nearest.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

using Names = std::vector<std::string>;

TEST(Nearest, FindsSlipsOfTheHand) {
  const Names flags = {"--hidden-size", "--num-layers", "--seq-length", "--lr"};
  EXPECT_EQ(nearest("--hiden-size", flags), Names{"--hidden-size"});  // left out
  EXPECT_EQ(nearest("--num-layres", flags), Names{"--num-layers"});   // swapped
  EXPECT_EQ(nearest("--seq_length", flags), Names{"--seq-length"});   // other separator
  EXPECT_EQ(nearest("--ls", flags), Names{"--lr"});
}

TEST(Nearest, FindsPartsOfLongNames) {
  EXPECT_EQ(nearest("model-parallel", Names{"--tensor-model-parallel-size", "--lr"}),
            Names{"--tensor-model-parallel-size"});
}

TEST(Nearest, OrdersByDistanceAndStopsAtMost) {
  const Names names = {"train_xxx", "train_xx", "train_x", "train_y"};
  EXPECT_EQ(nearest("train_x", names, 2), (Names{"train_x", "train_xx"}));
}

TEST(Nearest, OffersNothingWhereNothingResembles) {
  EXPECT_TRUE(nearest("quickstart", Names{"plan", "serve"}).empty());
  EXPECT_TRUE(nearest("", Names{"plan"}).empty());
  EXPECT_EQ(did_you_mean(Names{}), "");
}

TEST(Nearest, SpellsTheQuestion) {
  EXPECT_EQ(did_you_mean(Names{"a"}), "did you mean 'a'?");
  EXPECT_EQ(did_you_mean(Names{"a", "b", "c"}), "did you mean 'a', 'b' or 'c'?");
}

}  // namespace
}  // namespace megatron
