#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class ShardingStrategy { no_shard, optim, optim_grads, optim_grads_params };
constexpr auto names(ShardingStrategy) {
  return std::array{"no_shard", "optim", "optim_grads", "optim_grads_params"};
}
enum class OuterSharding { no_shard, optim };
constexpr auto names(OuterSharding) { return std::array{"no_shard", "optim"}; }

struct DdpConfig {
  std::optional<bool> grad_reduce_in_fp32;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false;
  bool align_param_gather = true;
  bool use_distributed_optimizer = false;
  int64_t num_distributed_optimizer_instances = 1;
  bool check_for_nan_in_grad = true;
  bool check_for_large_grads = false;
  int64_t bucket_size = 0;
  int64_t num_buckets = 0;
  bool pad_buckets_for_high_nccl_busbw = false;
  bool average_in_collective = false;
  bool reduce_scatter_with_fp32_accumulation = false;
  std::vector<std::string> param_name_patterns_for_fp32_local_accumulation;
  bool use_megatron_fsdp = false;
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::no_shard;
  OuterSharding outer_dp_sharding_strategy = OuterSharding::no_shard;
  int64_t suggested_communication_unit_size = 0;
  bool fsdp_double_buffer = false;
  std::string megatron_fsdp_main_params_dtype = "fp32";
  std::string megatron_fsdp_main_grads_dtype = "auto";
  std::string megatron_fsdp_grad_comm_dtype = "auto";
  bool nccl_ub = false;
};

template <>
const Schema& schema<DdpConfig>();

enum class DistBackend { nccl, gloo };
constexpr auto names(DistBackend) { return std::array{"nccl", "gloo"}; }
enum class SharpGroup { none, dp, dp_replica };
constexpr auto names(SharpGroup) { return std::array{"none", "dp", "dp_replica"}; }

struct DistConfig {
  double distributed_timeout_minutes = 10;
  double distributed_timeout_seconds_after_init = 0;
  bool align_grad_reduce = true;
  bool use_tp_pp_dp_mapping = false;
  std::string nccl_communicator_config_path;
  bool use_sharp = false;
  SharpGroup sharp_enabled_group = SharpGroup::none;
  std::vector<std::string> high_priority_stream_groups;
  bool create_all_gather_group = false;
  int64_t eval_context_parallel_size = 0;
  std::string flight_recorder_dump_path;
  int64_t flight_recorder_trace_buffer_size = 2000;
};

template <>
const Schema& schema<DistConfig>();

}  // namespace megatron
