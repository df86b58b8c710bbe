#include "megatron/config/schema/inference_config.h"

namespace megatron {
namespace {

Schema inference_config_schema() {
  using C = InferenceConfig;
  Schema s("inference", "Inference");
  s.field<&C::inference_max_requests>("inference_max_requests", "requests at once").min(1);
  s.field<&C::inference_max_seq_length>("inference_max_seq_length", "tokens of prompt and answer").min(1);
  s.field<&C::inference_batch_times_seqlen_threshold>(
       "inference_batch_times_seqlen_threshold", "batch x length above which stages work in turns; -1: never")
      .min(-1);
  s.field<&C::max_tokens_to_oom>("max_tokens_to_oom", "tokens refused in one request of the old server")
      .min(1);
  s.field<&C::inference_sampling_seed>("inference_sampling_seed", "seed of sampling");
  s.field<&C::offset_sampling_seed_by_dp_rank>("offset_sampling_seed_by_dp_rank",
                                               "replicas sample differently")
      .off_flag("--use-same-sampling-seed-across-dp-ranks");
  s.field<&C::inference_dynamic_batching>("inference_dynamic_batching",
                                          "requests join and leave a running batch");
  s.field<&C::inference_dynamic_batching_buffer_size_gb>("inference_dynamic_batching_buffer_size_gb",
                                                         "memory for keys and values")
      .above(0);
  s.field<&C::inference_dynamic_batching_block_size>("inference_dynamic_batching_block_size",
                                                     "tokens in one block of keys and values")
      .min(1);
  s.field<&C::inference_dynamic_batching_max_requests>("inference_dynamic_batching_max_requests",
                                                       "requests in the batch")
      .min(1);
  s.field<&C::inference_dynamic_batching_max_tokens>("inference_dynamic_batching_max_tokens",
                                                     "tokens in one pass")
      .min(1);
  s.field<&C::inference_dynamic_batching_num_cuda_graphs>("inference_dynamic_batching_num_cuda_graphs",
                                                          "batch sizes that are recorded; -1: as many as fit")
      .min(-1);
  s.field<&C::inference_dynamic_batching_cuda_graph_mixed_prefill_count>(
       "inference_dynamic_batching_cuda_graph_mixed_prefill_count",
       "requests with prompts in a recorded batch")
      .min(0);
  s.field<&C::inference_dynamic_batching_unified_memory_level>(
       "inference_dynamic_batching_unified_memory_level", "1 puts keys and values into unified memory")
      .min(0)
      .max(1);
  s.field<&C::inference_dynamic_batching_logprobs_mode>(
      "inference_dynamic_batching_logprobs_mode", "log-probabilities before or after temperature and cuts");
  s.field<&C::inference_dynamic_batching_paused_buffer_size_gb>(
       "inference_dynamic_batching_paused_buffer_size_gb", "memory for keys and values of paused requests")
      .min(0);
  s.field<&C::inference_dynamic_batching_mamba_memory_ratio>("inference_dynamic_batching_mamba_memory_ratio",
                                                             "part of that memory for Mamba's states")
      .min(0)
      .max(1);
  s.field<&C::inference_dynamic_batching_cuda_graph_sizing_distribution>(
      "inference_dynamic_batching_cuda_graph_sizing_distribution", "how the recorded batch sizes are spaced");
  s.field<&C::mamba_inference_conv_states_dtype>("mamba_inference_conv_states_dtype",
                                                 "number format of Mamba's convolution states")
      .dtype({"bf16", "fp16", "fp32"});
  s.field<&C::mamba_inference_ssm_states_dtype>("mamba_inference_ssm_states_dtype",
                                                "number format of Mamba's states")
      .dtype({"bf16", "fp16", "fp32"});
  s.field<&C::inference_dynamic_batching_enable_prefix_caching>(
       "inference_dynamic_batching_enable_prefix_caching", "common beginnings of prompts are computed once")
      .also("--inference-dynamic-batching-prefix-caching")
      .off_flag("--no-inference-dynamic-batching-prefix-caching");
  s.field<&C::inference_dynamic_batching_prefix_caching_eviction_policy>(
      "inference_dynamic_batching_prefix_caching_eviction_policy", "when cached blocks are freed");
  s.field<&C::inference_dynamic_batching_prefix_caching_coordinator_policy>(
      "inference_dynamic_batching_prefix_caching_coordinator_policy", "which replica takes a request");
  s.field<&C::inference_dynamic_batching_prefix_caching_routing_alpha>(
       "inference_dynamic_batching_prefix_caching_routing_alpha",
       "weight of the cached part against the load")
      .min(0)
      .max(1);
  s.field<&C::inference_dynamic_batching_prefix_caching_mamba_gb>(
       "inference_dynamic_batching_prefix_caching_mamba_gb", "memory for cached Mamba states")
      .min(0);
  s.field<&C::inference_cuda_graph_all_prefills>("inference_cuda_graph_all_prefills",
                                                 "record batches with any number of prompts");
  s.field<&C::inference_cuda_graph_max_tokens>("inference_cuda_graph_max_tokens",
                                               "tokens of the largest recorded batch with prompts")
      .min(1);
  s.field<&C::decode_only_cuda_graphs>("decode_only_cuda_graphs", "record batches without prompts only");
  s.field<&C::enable_chunked_prefill>("enable_chunked_prefill", "long prompts are read in pieces");
  s.field<&C::num_speculative_tokens>("num_speculative_tokens", "tokens guessed ahead by MTP layers").min(0);
  s.field<&C::inference_logging_step_interval>("inference_logging_step_interval",
                                               "passes between log lines; 0: none")
      .min(0);
  s.field<&C::inference_coordinator_port>("inference_coordinator_port", "port of the coordinator")
      .min(1)
      .max(65535);
  s.field<&C::inference_shards>("inference_shards",
                                "separate engines for prompts and answers: tp=2,role=prefill+...");
  s.field<&C::return_log_probs>("return_log_probs", "answers carry log-probabilities");
  s.field<&C::skip_prompt_log_probs>("skip_prompt_log_probs", "but not those of the prompt");
  s.field<&C::flash_decode>("flash_decode", "decode with a kernel of its own");
  return s;
}

}  // namespace

template <>
const Schema& schema<InferenceConfig>() {
  static const Schema rows = inference_config_schema();
  return rows;
}

}  // namespace megatron
