#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class PipelineSchedule { automatic, gpipe, one_f_one_b, interleaved, zb_h1, zb_v };
constexpr auto names(PipelineSchedule) {
  return std::array{"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
}
enum class P2pBackend { none, nccl, ucc };
constexpr auto names(P2pBackend) { return std::array{"none", "nccl", "ucc"}; }
enum class TpBootstrap { nccl, mpi, gloo };
constexpr auto names(TpBootstrap) { return std::array{"nccl", "mpi", "gloo"}; }

struct ParallelConfig {
  // Degrees
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  int64_t expert_tensor_parallel_size = 0;
  bool sequence_parallel = false;
  int64_t tensor_parallel_num_weight_shards = 0;
  int64_t expert_tensor_parallel_num_weight_shards = 0;

  // Pipeline
  PipelineSchedule pipeline_schedule = PipelineSchedule::automatic;
  int64_t virtual_pipeline_model_parallel_size = 0;
  int64_t num_layers_per_virtual_pipeline_stage = 0;
  std::optional<int64_t> microbatch_group_size_per_vp_stage;
  std::string pipeline_model_parallel_layout;
  int64_t num_layers_in_first_pipeline_stage = 0;
  int64_t num_layers_in_last_pipeline_stage = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::optional<bool> overlap_p2p_comm;
  bool overlap_p2p_comm_warmup_flush = false;
  P2pBackend pipeline_model_parallel_comm_backend = P2pBackend::none;
  bool defer_embedding_wgrad_compute = false;
  int64_t wgrad_deferral_limit = 0;
  bool variable_seq_lengths = false;

  // Context
  std::vector<std::string> cp_comm_type = {"p2p"};
  std::vector<int64_t> hierarchical_context_parallel_sizes;
  bool hybrid_context_parallel = false;
  std::optional<int64_t> max_seqlen_per_dp_cp_rank;

  // Overlap
  bool tp_comm_overlap = false;
  std::string tp_comm_overlap_cfg;
  bool tp_comm_overlap_ag = true;
  bool tp_comm_overlap_rs = true;
  bool tp_comm_overlap_rs_dgrad = false;
  bool tp_comm_bulk_dgrad = true;
  bool tp_comm_bulk_wgrad = true;
  bool tp_comm_overlap_disable_qkv = false;
  bool tp_comm_overlap_disable_fc1 = false;
  TpBootstrap tp_comm_bootstrap_backend = TpBootstrap::nccl;
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;
  bool ep_overlap_early_attn_memory_release = false;
  bool overlap_dispatch_backward_with_experts_wgrad = false;
};

template <>
const Schema& schema<ParallelConfig>();

}  // namespace megatron
