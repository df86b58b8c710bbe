#include "megatron/inference/engine_options.h"

namespace megatron {

EngineOptions engine_options(const Config& settings) {
  const InferenceConfig& config = settings.inference;
  EngineOptions options;
  options.batch_invariant = settings.precision.batch_invariant_mode;
  options.block_size = config.inference_dynamic_batching_block_size;
  options.cache_bytes =
      static_cast<int64_t>(config.inference_dynamic_batching_buffer_size_gb * static_cast<double>(1 << 30));
  options.state_ratio = config.inference_dynamic_batching_mamba_memory_ratio;
  options.max_requests = config.inference_dynamic_batching_max_requests.value_or(
      config.inference_max_requests.value_or(options.max_requests));
  options.max_tokens = config.inference_dynamic_batching_max_tokens.value_or(options.max_tokens);
  options.max_length = config.inference_max_seq_length.value_or(0);
  options.prefix_caching = config.inference_dynamic_batching_enable_prefix_caching;
  options.speculative_tokens = config.num_speculative_tokens;
  options.logprobs = config.inference_dynamic_batching_logprobs_mode;
  options.eviction = config.inference_dynamic_batching_prefix_caching_eviction_policy;
  return options;
}

}  // namespace megatron
