#include "megatron/models/parallel_setup.h"

#include <algorithm>

#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/models/pipeline_setup.h"

namespace megatron {

TensorOverlap layer_overlap(TensorOverlap base, const TpOverlapFile::Linear& file, bool gathers_input) {
  using enum TpOverlapFile::Method;
  const auto set = [](bool& flag, const TpOverlapFile::Gemm& gemm, TpOverlapFile::Method method) {
    if (gemm.method != unset) flag = gemm.method == method;
  };
  const TpOverlapFile::Gemm &gather = gathers_input ? file.fprop : file.dgrad,
                            &scatter = gathers_input ? file.dgrad : file.fprop;
  set(base.gather, gather, ring_exchange);
  base.aggregate = gather.aggregate;
  base.splits = scatter.method == pipeline ? scatter.splits : 0;
  if (gathers_input) {
    if (file.dgrad.method == bulk || file.dgrad.method == none)
      base.gather_under_data = file.dgrad.method == bulk;
    set(base.reduce_under_weight, file.wgrad, bulk);
  }
  if (scatter.method != unset)
    (gathers_input ? base.scatter_data : base.scatter) =
        scatter.method == ring_exchange || scatter.method == pipeline;
  return base;
}

namespace {

TensorParallel tensor_parallel(const Config& config, const ParallelContext& parallel) {
  const ParallelConfig& p = config.parallel;
  TensorParallel tp{.group = parallel.group(Axis::tp), .sequence_parallel = p.sequence_parallel};
  tp.overlap = {.on = p.tp_comm_overlap,
                .gather = p.tp_comm_overlap_ag,
                .scatter = p.tp_comm_overlap_rs,
                .scatter_data = p.tp_comm_overlap_rs_dgrad,
                .gather_under_data = p.tp_comm_bulk_dgrad,
                .reduce_under_weight = p.tp_comm_bulk_wgrad};
  const TpOverlapFile file = tp.overlap.on && !p.tp_comm_overlap_cfg.empty()
                                 ? TpOverlapFile::read(p.tp_comm_overlap_cfg)
                                 : TpOverlapFile();
  tp.layer_overlaps = {.qkv = layer_overlap(tp.overlap, file.qkv, true),
                       .proj = layer_overlap(tp.overlap, file.proj, false),
                       .fc1 = layer_overlap(tp.overlap, file.fc1, true),
                       .fc2 = layer_overlap(tp.overlap, file.fc2, false)};
  if (p.tp_comm_overlap_disable_qkv) tp.layer_overlaps.qkv.on = false;
  if (p.tp_comm_overlap_disable_fc1) tp.layer_overlaps.fc1.on = false;
  if (const UnequalReplicas* unequal = parallel.unequal()) tp.replica_sizes = unequal->tp_sizes;
  int groups = static_cast<int>(config.model.num_query_groups);
  if (groups > 0 && tp.size() > groups && !tp.unequal() && !config.model.multi_latent_attention)
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
  for (const InactiveSlotsEntry& entry : inactive_slots(p))
    sizes.inactive.push_back({static_cast<int>(entry.dp),
                              static_cast<int>(entry.cp),
                              static_cast<int>(entry.pp),
                              {entry.slots.begin(), entry.slots.end()}});
  if (config.dist.use_tp_pp_dp_mapping) sizes.order = "tp-cp-ep-pp-dp";
  sizes.embedding_stages = embedding_stages(config);
  return sizes;
}

ModelParallel model_parallel(const Config& config, const ParallelContext& parallel) {
  return {.tensor = tensor_parallel(config, parallel),
          .context = context_parallel(config, parallel),
          .expert = ExpertParallel::of(parallel)};
}

// A step waits for the fullest rank of each layer: the one with the most heads, columns and rows.
std::vector<int> replica_speeds(const ModelConfig& model, const std::vector<int>& tp_sizes) {
  constexpr double kWhole = 1 << 20;
  const int largest = *std::max_element(tp_sizes.begin(), tp_sizes.end());
  const auto h = static_cast<double>(model.hidden_size), s = static_cast<double>(model.seq_length);
  const int64_t all_heads = std::max<int64_t>(1, model.num_attention_heads);
  const auto heads = static_cast<double>(all_heads),
             channels = static_cast<double>(model.kv_channels > 0 ? model.kv_channels
                                                                  : model.hidden_size / all_heads);
  const int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : all_heads;
  const int64_t units = groups >= largest ? groups : all_heads;
  // Multiplications of a token in a layer.
  const double attention =
      (2 * heads + 2 * static_cast<double>(groups)) * channels * h + s * heads * channels;
  double width = static_cast<double>(model.ffn_hidden_size);
  if (model.num_moe_experts > 0)
    width = static_cast<double>(model.moe_ffn_hidden_size * model.moe_router_topk +
                                model.moe_shared_expert_intermediate_size);
  const double others = (model.gated_linear_unit ? 3 : 2) * h * width +
                        h * static_cast<double>(model.vocab_size) / static_cast<double>(model.num_layers);
  std::vector<int> speeds;
  for (const int size : tp_sizes) {
    const double share = static_cast<double>((units + size - 1) / size) / static_cast<double>(units);
    const double time = attention * share + others / size;
    speeds.push_back(std::max(1, static_cast<int>(kWhole * (attention + others) / largest / time)));
  }
  return speeds;
}

Shares batch_shares(const Config& config, const ParallelContext& parallel, int64_t batch,
                    int64_t micro_batch) {
  const UnequalReplicas* unequal = parallel.unequal();
  return unequal ? unequal_shares(config, unequal->tp_sizes, batch, micro_batch)
                 : Shares::even(batch, micro_batch, parallel.replicas());
}

Shares unequal_shares(const Config& config, const std::vector<int>& tp_sizes, int64_t batch,
                      int64_t micro_batch) {
  // Interleaved schedules go through micro-batches in rounds.
  const PipelineShape shape = pipeline_shape(config, 1);
  const int64_t multiple = shape.vpp > 1 ? std::max(shape.pp, shape.group) : 1;
  return Shares::weighted(batch, micro_batch, replica_speeds(config.model, tp_sizes), multiple);
}

Shares batch_shares(const Config& config, const ParallelContext& parallel, int64_t batch) {
  return batch_shares(config, parallel, batch, config.train.micro_batch_size);
}

}  // namespace megatron
