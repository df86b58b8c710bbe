#pragma once

#include "megatron/config/config.h"

// Settings that layouts of several tests take beside their sizes.
namespace megatron {

template <int level>
void shard(Config& config, int64_t bucket_size) {
  config.ddp.use_distributed_optimizer = true;
  config.ddp.use_megatron_fsdp = level > 1;
  config.ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(level);
  config.ddp.bucket_size = bucket_size;
  config.ddp.overlap_grad_reduce = config.ddp.overlap_param_gather = true;
}

template <PipelineSchedule kind>
void use(Config& config) {
  config.parallel.pipeline_schedule = kind;
}

}  // namespace megatron
