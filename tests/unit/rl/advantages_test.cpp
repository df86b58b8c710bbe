#include "megatron/rl/advantages.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megatron::rl {

TEST(Advantages, LeaveOutRolloutsWithoutTokens) {
  // mean 2, population variance 2 / 3; the reward of the empty rollout counts nowhere.
  std::vector<double> rewards = {1, 2, 100, 3};
  std::vector<int64_t> tokens = {4, 1, 0, 7};
  std::vector<double> advantages = group_advantages(rewards, tokens);
  double unit = 1e-4 + std::sqrt(2.0 / 3);
  EXPECT_DOUBLE_EQ(advantages[0], -1 / unit);
  EXPECT_DOUBLE_EQ(advantages[1], 0);
  EXPECT_DOUBLE_EQ(advantages[2], 0);
  EXPECT_DOUBLE_EQ(advantages[3], 1 / unit);
}

TEST(Advantages, OfAGroupWithoutTokensAreZero) {
  std::vector<double> rewards = {1, 2};
  std::vector<int64_t> tokens = {0, 0};
  EXPECT_EQ(group_advantages(rewards, tokens), (std::vector<double>{0, 0}));
}

TEST(Advantages, TellGroupsWithTheSameReward) {
  std::vector<double> same = {.5, .5, .5}, different = {.5, .5, .25};
  EXPECT_TRUE(same_rewards(same));
  EXPECT_FALSE(same_rewards(different));
}

}  // namespace megatron::rl
