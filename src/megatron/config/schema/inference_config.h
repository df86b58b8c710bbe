#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class GraphSizes { exponential, linear };
constexpr auto names(GraphSizes) { return std::array{"exponential", "linear"}; }
enum class EvictionPolicy { ref_zero, lru };
constexpr auto names(EvictionPolicy) { return std::array{"ref_zero", "lru"}; }
enum class RoutingPolicy { longest_prefix, first_prefix_block, load_balanced };
constexpr auto names(RoutingPolicy) {
  return std::array{"longest_prefix", "first_prefix_block", "load_balanced"};
}
enum class LogprobsMode { raw_logprobs, processed_logprobs };
constexpr auto names(LogprobsMode) { return std::array{"raw_logprobs", "processed_logprobs"}; }

struct InferenceConfig {
  int64_t inference_max_requests = 8;
  int64_t inference_max_seq_length = 2560;
  int64_t inference_batch_times_seqlen_threshold = -1;
  int64_t max_tokens_to_oom = 12000;
  int64_t inference_sampling_seed = 42;
  bool offset_sampling_seed_by_dp_rank = true;
  bool inference_dynamic_batching = false;
  double inference_dynamic_batching_buffer_size_gb = 40;
  int64_t inference_dynamic_batching_block_size = 256;
  std::optional<int64_t> inference_dynamic_batching_max_requests;
  std::optional<int64_t> inference_dynamic_batching_max_tokens;
  int64_t inference_dynamic_batching_num_cuda_graphs = 16;
  int64_t inference_dynamic_batching_cuda_graph_mixed_prefill_count = 16;
  int64_t inference_dynamic_batching_unified_memory_level = 0;
  LogprobsMode inference_dynamic_batching_logprobs_mode = LogprobsMode::raw_logprobs;
  std::optional<double> inference_dynamic_batching_paused_buffer_size_gb;
  std::optional<double> inference_dynamic_batching_mamba_memory_ratio;
  GraphSizes inference_dynamic_batching_cuda_graph_sizing_distribution = GraphSizes::exponential;
  std::string mamba_inference_conv_states_dtype = "bf16";
  std::string mamba_inference_ssm_states_dtype = "bf16";
  bool inference_dynamic_batching_enable_prefix_caching = false;
  EvictionPolicy inference_dynamic_batching_prefix_caching_eviction_policy = EvictionPolicy::ref_zero;
  RoutingPolicy inference_dynamic_batching_prefix_caching_coordinator_policy = RoutingPolicy::load_balanced;
  double inference_dynamic_batching_prefix_caching_routing_alpha = 0.5;
  std::optional<double> inference_dynamic_batching_prefix_caching_mamba_gb;
  bool inference_cuda_graph_all_prefills = false;
  int64_t inference_cuda_graph_max_tokens = 512;
  bool decode_only_cuda_graphs = false;
  bool enable_chunked_prefill = false;
  int64_t num_speculative_tokens = 0;
  int64_t inference_logging_step_interval = 0;
  std::optional<int64_t> inference_coordinator_port;
  std::string inference_shards;
  bool return_log_probs = false;
  bool skip_prompt_log_probs = false;
  bool flash_decode = false;
};

template <>
const Schema& schema<InferenceConfig>();

}  // namespace megatron
