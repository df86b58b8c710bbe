#include "megatron/config/schema/execution_config.h"

namespace megatron {
namespace {

Schema execution_config_schema() {
  using C = ExecutionConfig;
  Schema s("model", "Recompute, graphs and offload");

  // Recompute
  s.field<&C::recompute_granularity>(
       "recompute_granularity",
       "forget activations of whole layers, or of chosen modules, and compute them again")
      .tune({"none", "selective", "full"});
  s.field<&C::recompute_method>("recompute_method",
                                "with full: equal groups of layers, or the first layers of a stage")
      .tune({"uniform", "block"});
  s.field<&C::recompute_num_layers>("recompute_num_layers",
                                    "layers in one group (uniform), or layers that are recomputed (block)")
      .min(1);
  s.field<&C::recompute_modules>("recompute_modules",
                                 "modules that selective recompute forgets; auto: the cheapest, until memory "
                                 "suffices")
      .one_of({"auto", "core_attn", "mlp", "mlp_act", "moe", "shared_experts", "layernorm", "moe_act",
               "mla_up_proj", "gdn_norm_out", "gdp_qkv", "mhc"})
      .when_unset("core_attn");
  s.field<&C::recompute_module_layers>(
       "recompute_module_layers", "for each of those modules, the first layers of a stage that forget it")
      .min(1)
      .when_unset("all layers");
  s.field<&C::recompute_memory_gib>("recompute_memory_gib",
                                    "with modules auto: the memory that a rank may use, in GiB")
      .above(0)
      .when_unset("nine tenths of the device's");
  s.field<&C::distribute_saved_activations>("distribute_saved_activations",
                                            "kept layer inputs are split over the tensor-parallel ranks");

  // Graphs
  s.field<&C::cuda_graph_impl>("cuda_graph_impl",
                               "what is recorded once and replayed; several ranks: by NCCL only");
  s.field<&C::cuda_graph_modules>("cuda_graph_modules", "modules that are recorded; none means whole layers")
      .one_of({"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full"})
      .also("--cuda-graph-scope")
      .alias("model.cuda_graph_scope");
  s.field<&C::cuda_graph_warmup_steps>("cuda_graph_warmup_steps",
                                       "steps before recording, which plan and measure")
      .min(1);

  // Offload
  s.field<&C::cpu_offloading>("cpu_offloading", "activations of the first layers wait in host memory");
  s.field<&C::cpu_offloading_num_layers>("cpu_offloading_num_layers",
                                         "layers whose activations wait in host memory")
      .min(0);
  s.field<&C::cpu_offloading_activations>("cpu_offloading_activations", "offload activations").no_flag();
  s.field<&C::cpu_offloading_weights>("cpu_offloading_weights", "offload weights too").no_flag();
  s.field<&C::fine_grained_activation_offloading>("fine_grained_activation_offloading",
                                                  "activations of chosen modules wait in host memory");
  s.field<&C::offload_modules>("offload_modules", "modules whose activations wait in host memory")
      .one_of({"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
               "fused_group_mlp", "gdp_qkv"});
  s.field<&C::min_offloaded_tensor_size>("min_offloaded_tensor_size", "elements below which a tensor stays")
      .min(0);
  s.field<&C::activation_offload_fraction>("activation_offload_fraction",
                                           "part of the eligible activations that is offloaded")
      .min(0)
      .max(1);
  s.field<&C::delta_offload_bytes_across_pp_ranks>("delta_offload_bytes_across_pp_ranks",
                                                   "bytes less that each later stage offloads");
  s.field<&C::fine_grained_offloading_max_inflight_offloads>("fine_grained_offloading_max_inflight_offloads",
                                                             "copies to the host at once")
      .min(1);
  s.field<&C::mlp_chunks_for_prefill>("mlp_chunks_for_prefill",
                                      "pieces in which long prompts pass the feed-forward layer")
      .min(1);
  s.field<&C::mlp_chunks_for_training>("mlp_chunks_for_training",
                                       "pieces in which training sequences pass the feed-forward layer")
      .min(1);
  s.field<&C::batch_invariant_mode>("batch_invariant_mode",
                                    "results do not depend on what else is in the batch");
  return s;
}

}  // namespace

template <>
const Schema& schema<ExecutionConfig>() {
  static const Schema rows = execution_config_schema();
  return rows;
}

}  // namespace megatron
