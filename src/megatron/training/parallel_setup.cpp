#include "megatron/training/parallel_setup.h"

namespace megatron {

ParallelSizes parallel_sizes(const Config& config, int64_t world) {
  const ParallelConfig& p = config.parallel;
  ParallelSizes sizes;
  sizes.world = static_cast<int>(world);
  sizes.tp = static_cast<int>(p.tensor_model_parallel_size);
  sizes.pp = static_cast<int>(p.pipeline_model_parallel_size);
  sizes.cp = static_cast<int>(p.context_parallel_size);
  sizes.ep = static_cast<int>(p.expert_model_parallel_size);
  if (p.expert_tensor_parallel_size > 0) sizes.etp = static_cast<int>(p.expert_tensor_parallel_size);
  if (p.tensor_parallel_num_weight_shards > 0)
    sizes.gtp = static_cast<int>(p.tensor_parallel_num_weight_shards) / sizes.tp;
  if (p.expert_tensor_parallel_num_weight_shards > 0)
    sizes.egtp = static_cast<int>(p.expert_tensor_parallel_num_weight_shards) / sizes.expert_tp();
  sizes.optimizer_instances = static_cast<int>(config.ddp.num_distributed_optimizer_instances);
  for (int64_t level : p.hierarchical_context_parallel_sizes)
    sizes.cp_levels.push_back(static_cast<int>(level));
  sizes.hybrid_cp = p.hybrid_context_parallel;
  if (config.dist.use_tp_pp_dp_mapping) sizes.order = "tp-cp-ep-pp-dp";
  return sizes;
}

}  // namespace megatron
