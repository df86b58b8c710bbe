#pragma once

#include "megatron/autograd/rank_context.h"
#include "processes/process_parity.h"

// What the tests of NCCL have in common: this process's rank and GPU, and what all of them run.
namespace megatron::testing {

extern Launch* launch;
extern Device gpu;

using OnRank = std::function<void(RankContext&, ProcessGroup&)>;
void on_gpus(const OnRank& fn);

// Says how long a layout took.
void named(const std::string& layout, const std::function<void()>& check);

// A world ends with its first fault, so each of these has processes of its own, three of them.
void expect_end(const OnRank& fn, std::initializer_list<const char*> parts);

inline void sharded(Config& config, int zero) {
  config.ddp.use_distributed_optimizer = true;
  config.ddp.use_megatron_fsdp = zero > 1;
  config.ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(zero);
  config.ddp.overlap_grad_reduce = config.ddp.overlap_param_gather = true;
  config.ddp.bucket_size = 3000;
}

}  // namespace megatron::testing
