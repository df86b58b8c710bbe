#include "megatron/config/resolve/captured_step.h"

#include <algorithm>

namespace megatron {
namespace {

bool ranks_share_experts(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return config.model.num_moe_experts > 0 && p.expert_model_parallel_size * p.expert_tensor_parallel_size > 1;
}

}  // namespace

std::vector<CaptureObstacle> capture_obstacles(const Config& config) {
  const ModelConfig& m = config.model;
  const ExecutionConfig& e = config.execution;
  std::vector<CaptureObstacle> list;
  const auto add_if = [&](bool what, const char* why, const char* fix) {
    if (what) list.push_back({why, fix});
  };
  const ParallelConfig& p = config.parallel;
  const bool gathers_tokens = ranks_share_experts(config);  // whatever the dispatcher is
  add_if((p.pipeline_model_parallel_size > 1 || gathers_tokens) && p.variable_seq_lengths,
         "batches of other lengths are not replayed",
         "leave it out, or leave out model.variable_seq_lengths");
  add_if(!config.checkpoint.save.empty() && config.checkpoint.save_activations_interval > 0,
         "a captured step shows no activations", "leave it out, or leave out --save-activations-interval");
  add_if(!config.checkpoint.save.empty() && config.checkpoint.save_dgrads_interval > 0,
         "a captured step shows no gradients of activations",
         "leave it out, or leave out --save-dgrads-interval");
  add_if(m.num_moe_experts > 0 && !config.checkpoint.save.empty() &&
             config.checkpoint.save_tokens_per_expert_interval > 0,
         "a captured step counts no tokens of experts",
         "leave it out, or leave out --save-tokens-per-expert-interval");
  add_if(m.num_moe_experts > 0 && !config.logger.moe_routing_trace_path.empty(),
         "a captured step shows no routing", "leave it out, or leave out --moe-routing-trace-path");
  add_if(gathers_tokens && m.moe_shared_expert_overlap,
         "a captured step gathers tokens for experts without shared ones beside it",
         "leave it out, or leave out --moe-shared-expert-overlap");
  add_if(gathers_tokens && m.overlap_moe_expert_parallel_comm,
         "a captured step gathers tokens for experts without another micro-batch beside it",
         "leave it out, or leave out --overlap-moe-expert-parallel-comm");
  add_if(gathers_tokens && m.overlap_dispatch_backward_with_experts_wgrad,
         "a captured step gathers tokens for experts without weight gradients beside it",
         "leave it out, or leave out --overlap-dispatch-backward-with-experts-wgrad");
  const std::vector<std::string>& balancing = m.moe_router_load_balancing_type;
  add_if(
      m.num_moe_experts > 0 && std::find(balancing.begin(), balancing.end(), "sinkhorn") != balancing.end(),
      "the host balances tokens by Sinkhorn's algorithm", "leave it out");
  add_if(e.cpu_offloading || e.fine_grained_activation_offloading, "copies to the host are not captured",
         "leave it out");
  add_if(config.precision.fp8 != Fp8Format::none && config.precision.fp8_recipe == Fp8Recipe::delayed,
         "delayed scaling moves on by the host", "use --fp8-recipe tensorwise");
  add_if(config.rl.perform_rl_step, "a captured step reads no advantages",
         "leave it out, or leave out --perform-rl-step");
  add_if(config.distill.has_teacher(), "a captured step asks no teacher",
         "leave it out, or leave out --export-kd-teacher-load");
  add_if(config.distill.learns_from_recording(), "a captured step reads no recorded predictions",
         "leave it out, or leave out --logits-load-dir");
  add_if(config.elastic.flextron, "a captured step always passes the same sub-network",
         "leave it out, or leave out --flextron");
  return list;
}

std::string parts_not_captured(const Config& config) {
  if (const std::vector<CaptureObstacle> list = capture_obstacles(config); !list.empty())
    return list.front().why;
  if (ranks_share_experts(config))
    return "experts are shared among ranks; --cuda-graph-impl full_iteration captures such steps, with "
           "buffers for as many tokens as could come";
  if (config.model.model_type == ModelType::t5) return "steps of an encoder and a decoder are not captured";
  if (config.model.has_tower()) return "images differ in size from step to step";
  if (config.execution.cuda_graph_warmup_steps < 1) return "the first step measures and cannot be captured";
  return "";
}

bool captures_steps(const Config& config) {
  const GraphImpl impl = config.execution.cuda_graph_impl;
  return impl == GraphImpl::full_iteration || (impl != GraphImpl::none && parts_not_captured(config).empty());
}

}  // namespace megatron
