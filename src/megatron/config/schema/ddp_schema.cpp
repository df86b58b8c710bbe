#include "megatron/config/schema/ddp_config.h"

namespace megatron {
namespace {

Schema ddp_config_schema() {
  using C = DdpConfig;
  Schema s("ddp", "Data parallelism");
  s.field<&C::grad_reduce_in_fp32>("grad_reduce_in_fp32",
                                   "gradients gather and are summed over ranks in fp32, not bf16")
      .flag("--accumulate-allreduce-grads-in-fp32")
      .off_flag("--grad-reduce-in-bf16")
      .also("--grad-reduce-in-fp32")
      .when_unset("on with bf16");
  s.field<&C::overlap_grad_reduce>("overlap_grad_reduce", "gradients are reduced while backward runs")
      .tune({false, true})
      .alias("comm_overlap.overlap_grad_reduce");
  s.field<&C::overlap_param_gather>("overlap_param_gather", "parameters are gathered while forward runs")
      .alias("optimizer.overlap_param_gather")
      .tune({false, true})
      .alias("comm_overlap.overlap_param_gather");
  s.field<&C::overlap_param_gather_with_optimizer_step>(
       "overlap_param_gather_with_optimizer_step", "the gather of the first bucket overlaps with the update")
      .alias("optimizer.overlap_param_gather_with_optimizer_step")
      .alias("comm_overlap.overlap_param_gather_with_optimizer_step");
  s.field<&C::align_param_gather>("align_param_gather", "all stages start gathering together")
      .alias("comm_overlap.align_param_gather");
  s.field<&C::use_distributed_optimizer>("use_distributed_optimizer",
                                         "optimizer states are split over the data-parallel ranks")
      .alias("optimizer.use_distributed_optimizer")
      .tune({false, true});
  s.field<&C::num_distributed_optimizer_instances>("num_distributed_optimizer_instances",
                                                   "copies of the split states")
      .min(1);
  s.field<&C::check_for_nan_in_grad>("check_for_nan_in_grad", "stop at gradients that are not numbers")
      .no_flag();
  s.field<&C::check_for_large_grads>("check_for_large_grads", "report gradients much larger than before");
  s.field<&C::bucket_size>("bucket_size", "parameters in a bucket")
      .min(1)
      .flag("--ddp-bucket-size")
      .when_unset("max(40M, 1M x data-parallel size) with overlap, else all in one")
      .alias("comm_overlap.bucket_size");
  s.field<&C::num_buckets>("num_buckets", "buckets, instead of their size").min(1).flag("--ddp-num-buckets");
  s.field<&C::pad_buckets_for_high_nccl_busbw>("pad_buckets_for_high_nccl_busbw",
                                               "buckets are padded to large powers of two")
      .flag("--ddp-pad-buckets-for-high-nccl-busbw");
  s.field<&C::average_in_collective>("average_in_collective", "the collective averages instead of summing")
      .flag("--ddp-average-in-collective");
  s.field<&C::reduce_scatter_with_fp32_accumulation>(
       "reduce_scatter_with_fp32_accumulation", "low-precision gradients are exchanged and summed in fp32")
      .flag("--ddp-reduce-scatter-with-fp32-accumulation");
  s.field<&C::param_name_patterns_for_fp32_local_accumulation>(
       "param_name_patterns_for_fp32_local_accumulation", "parameters whose gradients accumulate in fp32")
      .flag("--ddp-param-name-patterns-for-fp32-local-accumulation");
  s.field<&C::use_megatron_fsdp>("use_megatron_fsdp", "shard by the unit of a layer (FSDP)")
      .alias("dist.use_megatron_fsdp");
  s.field<&C::data_parallel_sharding_strategy>("data_parallel_sharding_strategy",
                                               "what the data-parallel ranks split between them")
      .tune({"no_shard", "optim", "optim_grads", "optim_grads_params"});
  s.field<&C::outer_dp_sharding_strategy>("outer_dp_sharding_strategy",
                                          "what outer groups of ranks split between them");
  s.field<&C::suggested_communication_unit_size>("suggested_communication_unit_size",
                                                 "parameters gathered at once")
      .min(1);
  s.field<&C::fsdp_double_buffer>("fsdp_double_buffer", "gather into two buffers in turn");
  s.field<&C::megatron_fsdp_main_params_dtype>("megatron_fsdp_main_params_dtype",
                                               "number format of the sharded main weights")
      .dtype({"fp32", "bf16", "fp16", "auto"});
  s.field<&C::megatron_fsdp_main_grads_dtype>("megatron_fsdp_main_grads_dtype",
                                              "number format of the sharded gradients")
      .dtype({"fp32", "bf16", "fp16", "auto"});
  s.field<&C::megatron_fsdp_grad_comm_dtype>("megatron_fsdp_grad_comm_dtype",
                                             "number format of gradients on the wire")
      .dtype({"fp32", "bf16", "fp16", "auto"});
  s.field<&C::nccl_ub>("nccl_ub", "communication buffers are registered with NCCL").flag("--use-nccl-ub");
  return s;
}

Schema dist_config_schema() {
  using C = DistConfig;
  Schema s("dist", "Processes and groups");
  s.field<&C::distributed_timeout_minutes>("distributed_timeout_minutes",
                                           "how long a rank waits for the others")
      .above(0);
  s.field<&C::distributed_timeout_seconds_after_init>("distributed_timeout_seconds_after_init",
                                                      "the same once training runs")
      .above(0);
  s.field<&C::align_grad_reduce>("align_grad_reduce", "all stages start reducing together");
  s.field<&C::use_tp_pp_dp_mapping>("use_tp_pp_dp_mapping",
                                    "neighbouring ranks are pipeline stages before data-parallel replicas");
  s.field<&C::nccl_communicator_config_path>("nccl_communicator_config_path",
                                             "YAML file with NCCL's options per group");
  s.field<&C::use_sharp>("use_sharp", "reductions run in the network switch");
  s.field<&C::sharp_enabled_group>("sharp_enabled_group", "the group that does so");
  s.field<&C::high_priority_stream_groups>("high_priority_stream_groups",
                                           "groups whose communication comes first on the device");
  s.field<&C::create_all_gather_group>("create_all_gather_group", "gathers get communicators of their own");
  s.field<&C::eval_context_parallel_size>("eval_context_parallel_size",
                                          "context-parallel size of evaluations")
      .min(1)
      .when_unset("model.context_parallel_size");
  s.field<&C::flight_recorder_dump_path>("flight_recorder_dump_path",
                                         "folder for the record of collectives after a fault");
  s.field<&C::flight_recorder_trace_buffer_size>("flight_recorder_trace_buffer_size",
                                                 "collectives that the record holds")
      .min(0);
  return s;
}

}  // namespace

template <>
const Schema& schema<DdpConfig>() {
  static const Schema rows = ddp_config_schema();
  return rows;
}

template <>
const Schema& schema<DistConfig>() {
  static const Schema rows = dist_config_schema();
  return rows;
}

}  // namespace megatron
