#include <gtest/gtest.h>

#include "megatron/training/setup/optimizer_setup.h"

namespace megatron {
namespace {

TEST(UnsharedState, IsWhatReplicasShareOut) {
  Config config;
  EXPECT_FALSE(has_unshared_state(config, 2, 2));
  config.ddp.use_distributed_optimizer = true;
  EXPECT_TRUE(has_unshared_state(config, 2, 2));
  config.ddp.use_distributed_optimizer = false;
  config.ddp.use_megatron_fsdp = true;
  for (const auto strategy :
       {ShardingStrategy::optim, ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params}) {
    config.ddp.data_parallel_sharding_strategy = strategy;
    EXPECT_TRUE(has_unshared_state(config, 2, 2));
  }
  config.ddp.data_parallel_sharding_strategy = ShardingStrategy::no_shard;
  EXPECT_FALSE(has_unshared_state(config, 2, 2));
}

TEST(UnsharedState, IsThatOfOneReplicaOrOfExpertsThatRanksHoldOnce) {
  Config config;
  EXPECT_TRUE(has_unshared_state(config, 1, 1));
  EXPECT_FALSE(has_unshared_state(config, 2, 1));  // no experts
  config.model.num_moe_experts = 4;
  EXPECT_TRUE(has_unshared_state(config, 2, 1));
  EXPECT_FALSE(has_unshared_state(config, 4, 2));
}

}  // namespace
}  // namespace megatron
