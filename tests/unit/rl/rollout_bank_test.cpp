#include "megatron/rl/rollout_bank.h"

#include <gtest/gtest.h>

#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::rl {
namespace {

using testing::error_of;
using testing::read_text;
using testing::TempDir;
using testing::write_text;

BankedGroup group_of(int64_t iteration, int64_t prompt, int rollouts = 3) {
  BankedGroup group{iteration, prompt, "countdown", 7 * prompt, {}};
  for (int i = 0; i < rollouts; ++i)
    group.rollouts.push_back(
        {{iteration, prompt, 50000 + i, -1}, 2, {-0.25f * static_cast<float>(i), -1.5f}, 0.1 * i, i != 1});
  return group;
}

RolloutBank::Options options_of(const TempDir& dir, int64_t max_bytes = 0) {
  return {dir / "bank", max_bytes, "seed 1, group size 3"};
}

TEST(RolloutBank, KeepsGroupsOverRestarts) {
  TempDir dir;
  {
    RolloutBank bank(options_of(dir));
    EXPECT_EQ(bank.find(3, 0), std::nullopt);
    for (int64_t prompt : {0, 2, 1}) EXPECT_TRUE(bank.append(group_of(3, prompt)));
    EXPECT_EQ(bank.find(3, 2), group_of(3, 2));
  }
  RolloutBank bank(options_of(dir));
  EXPECT_EQ(bank.size(), 3u);
  for (int64_t prompt : {0, 1, 2}) EXPECT_EQ(bank.find(3, prompt), group_of(3, prompt));
  EXPECT_EQ(bank.find(4, 0), std::nullopt);
  EXPECT_EQ(bank.bytes(), static_cast<int64_t>(read_text(dir / "bank/ledger.bin").size()));
}

TEST(RolloutBank, LastOfOnePromptCounts) {
  TempDir dir;
  BankedGroup second = group_of(3, 1);
  second.rollouts[0].reward = 9;
  {
    RolloutBank bank(options_of(dir));
    bank.append(group_of(3, 1));
    bank.append(second);
    EXPECT_EQ(bank.find(3, 1), second);
  }
  RolloutBank bank(options_of(dir));
  EXPECT_EQ(bank.size(), 1u);
  EXPECT_EQ(bank.find(3, 1), second);
}

// A kill may leave any part of the last record; the records before it are read, and the bank goes on.
TEST(RolloutBank, TornAtEveryByte) {
  TempDir dir;
  int64_t before = 0;
  {
    RolloutBank bank(options_of(dir));
    bank.append(group_of(5, 0, 1));
    bank.append(group_of(5, 1, 1));
    before = bank.bytes();
    bank.append(group_of(5, 2, 1));
  }
  const std::string whole = read_text(dir / "bank/ledger.bin");
  for (auto size = static_cast<size_t>(before); size <= whole.size(); ++size) {
    const bool goes_on = size % 16 == 0;  // appending waits for the disk
    // Cut, or with the rest of its pages unwritten.
    for (const bool zeros : {false, true}) {
      std::string torn = whole.substr(0, size);
      if (zeros) torn.resize(whole.size(), '\0');
      write_text(dir / "bank/ledger.bin", torn);
      RolloutBank bank(options_of(dir));
      const bool complete = torn == whole;
      ASSERT_EQ(bank.size(), complete ? 3u : 2u) << size;
      ASSERT_EQ(bank.find(5, 1), group_of(5, 1, 1)) << size;
      ASSERT_EQ(bank.find(5, 2), complete ? std::optional(group_of(5, 2, 1)) : std::nullopt) << size;
      if (goes_on) {
        ASSERT_TRUE(bank.append(group_of(5, 3)));
      }
    }
    RolloutBank again(options_of(dir));
    ASSERT_EQ(again.size(), (size == whole.size() ? 3u : 2u) + (goes_on ? 1 : 0)) << size;
    ASSERT_EQ(again.find(5, 3), goes_on ? std::optional(group_of(5, 3)) : std::nullopt) << size;
  }
}

TEST(RolloutBank, OneFlippedBitCostsNoOtherGroupBeforeIt) {
  TempDir dir;
  int64_t first = 0, second = 0;
  {
    RolloutBank bank(options_of(dir));
    first = bank.bytes();
    bank.append(group_of(5, 0));
    second = bank.bytes();
    bank.append(group_of(5, 1));
    bank.append(group_of(5, 2));
  }
  const std::string whole = read_text(dir / "bank/ledger.bin");
  for (auto at = static_cast<size_t>(second); at < whole.size(); at += 13) {
    std::string spoiled = whole;
    spoiled[at] = static_cast<char>(spoiled[at] ^ (1 << at % 8));
    write_text(dir / "bank/ledger.bin", spoiled);
    RolloutBank bank(options_of(dir));
    ASSERT_EQ(bank.find(5, 0), group_of(5, 0));
    for (int64_t prompt : {1, 2})
      if (const auto found = bank.find(5, prompt)) {
        ASSERT_EQ(*found, group_of(5, prompt));
      }
    ASSERT_LT(bank.size(), 3u) << at;
  }
  // In the contents of the first: the others stay.
  std::string spoiled = whole;
  spoiled[static_cast<size_t>(first) + 40] = static_cast<char>(spoiled[static_cast<size_t>(first) + 40] ^ 1);
  write_text(dir / "bank/ledger.bin", spoiled);
  RolloutBank bank(options_of(dir));
  EXPECT_EQ(bank.find(5, 0), std::nullopt);
  EXPECT_EQ(bank.find(5, 2), group_of(5, 2));
}

TEST(RolloutBank, CheckpointForgetsWhatIsTrained) {
  TempDir dir;
  {
    RolloutBank bank(options_of(dir));
    const int64_t empty = bank.bytes();
    for (int64_t iteration : {1, 2, 3, 4}) bank.append(group_of(iteration, 0));
    const int64_t full = bank.bytes();
    bank.checkpoint(2);
    EXPECT_EQ(bank.size(), 2u);
    EXPECT_EQ(bank.bytes() - empty, (full - empty) / 2);
    EXPECT_EQ(bank.find(2, 0), std::nullopt);
    EXPECT_EQ(bank.find(3, 0), group_of(3, 0));
    bank.append(group_of(5, 0));
    EXPECT_EQ(bank.find(4, 0), group_of(4, 0));
  }
  {
    RolloutBank bank(options_of(dir));
    EXPECT_EQ(bank.size(), 3u);
    EXPECT_EQ(bank.find(5, 0), group_of(5, 0));
    bank.checkpoint(9);
    EXPECT_EQ(bank.size(), 0u);
  }
  EXPECT_EQ(RolloutBank(options_of(dir)).size(), 0u);
}

TEST(RolloutBank, StaysWithinItsBytes) {
  TempDir dir;
  int64_t empty = 0, each = 0;
  {
    RolloutBank bank({dir / "other", 0, "seed 1, group size 3"});
    empty = bank.bytes();
    bank.append(group_of(1, 0));
    each = bank.bytes() - empty;
  }
  RolloutBank bank(options_of(dir, empty + 2 * each));
  EXPECT_TRUE(bank.append(group_of(1, 0)));
  EXPECT_TRUE(bank.append(group_of(2, 0)));
  EXPECT_FALSE(bank.append(group_of(3, 0)));
  EXPECT_EQ(bank.find(3, 0), std::nullopt);
  EXPECT_LE(static_cast<int64_t>(read_text(dir / "bank/ledger.bin").size()), empty + 2 * each);
  bank.checkpoint(1);
  EXPECT_TRUE(bank.append(group_of(3, 0)));
  EXPECT_FALSE(bank.append(group_of(4, 0)));
  EXPECT_EQ(bank.find(2, 0), group_of(2, 0));
}

TEST(RolloutBank, RefusesOthers) {
  TempDir dir;
  {
    RolloutBank bank(options_of(dir));
    EXPECT_NE(error_of([&] { RolloutBank other(options_of(dir)); }).find("in use"), std::string::npos);
  }
  auto options = options_of(dir);
  options.run = "seed 2";
  const std::string problem = error_of([&] { RolloutBank other(options); });
  EXPECT_NE(problem.find("(it has 'seed 1, group size 3', this run 'seed 2')"), std::string::npos) << problem;
  EXPECT_NE(problem.find("--rl-rollout-bank-dir"), std::string::npos) << problem;
  // What is refused is left as it is.
  EXPECT_EQ(RolloutBank(options_of(dir)).size(), 0u);
  write_text(dir / "bank/ledger.bin", "something else");
  EXPECT_NE(error_of([&] { RolloutBank other(options_of(dir)); }).find("no ledger"), std::string::npos);
  EXPECT_EQ(read_text(dir / "bank/ledger.bin"), "something else");
  write_text(dir / "file", "");
  EXPECT_NE(error_of([&] {
              RolloutBank other({dir / "file", 0, ""});
            }).find("--rl-rollout-bank-dir"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::rl
