#include "megatron/training/setup/parallel_setup.h"

#include "megatron/training/setup/pipeline_setup.h"

namespace megatron {
namespace {

TensorParallel tensor_parallel(const Config& config, const ParallelContext& parallel) {
  const ParallelConfig& p = config.parallel;
  TensorParallel tp{.group = parallel.group(Axis::tp), .sequence_parallel = p.sequence_parallel};
  tp.overlap = {.on = p.tp_comm_overlap,
                .gather = p.tp_comm_overlap_ag,
                .scatter = p.tp_comm_overlap_rs,
                .scatter_data = p.tp_comm_overlap_rs_dgrad,
                .gather_under_data = p.tp_comm_bulk_dgrad,
                .reduce_under_weight = p.tp_comm_bulk_wgrad,
                .qkv = !p.tp_comm_overlap_disable_qkv,
                .fc1 = !p.tp_comm_overlap_disable_fc1};
  int groups = static_cast<int>(config.model.num_query_groups);
  if (groups > 0 && tp.size() > groups && !config.model.multi_latent_attention)
    tp.key_group =
        tp.group.split_by([each = tp.size() / groups](int rank) { return rank / each; }, "tp-keys");
  return tp;
}

ContextParallel context_parallel(const Config& config, const ParallelContext& parallel) {
  ContextParallel context{.group = parallel.group(Axis::cp)};
  if (parallel.has(Axis::cp_level)) {
    context.inner = parallel.group(Axis::cp_level, 0);
    context.outer = parallel.group(Axis::cp_level, 1);
  }
  context.kinds.clear();
  for (const std::string& name : config.parallel.cp_comm_type) context.kinds.push_back(context_kind(name));
  return context;
}

}  // namespace

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
  sizes.embedding_stages = embedding_stages(config);
  return sizes;
}

ModelParallel model_parallel(const Config& config, const ParallelContext& parallel) {
  return {.tensor = tensor_parallel(config, parallel),
          .context = context_parallel(config, parallel),
          .expert = ExpertParallel::of(parallel)};
}

}  // namespace megatron
