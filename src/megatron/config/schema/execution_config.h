#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RecomputeGranularity { none, full, selective };
constexpr auto names(RecomputeGranularity) { return std::array{"none", "full", "selective"}; }
enum class RecomputeMethod { none, uniform, block };
constexpr auto names(RecomputeMethod) { return std::array{"none", "uniform", "block"}; }
enum class GraphImpl { none, local, transformer_engine, full_iteration };
constexpr auto names(GraphImpl) {
  return std::array{"none", "local", "transformer_engine", "full_iteration"};
}

struct ExecutionConfig {
  // Recompute
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  RecomputeMethod recompute_method = RecomputeMethod::none;
  int64_t recompute_num_layers = 0;
  std::vector<std::string> recompute_modules;
  std::vector<int64_t> recompute_module_layers;
  std::optional<double> recompute_memory_gib;
  bool distribute_saved_activations = false;

  // Graphs
  GraphImpl cuda_graph_impl = GraphImpl::none;
  std::vector<std::string> cuda_graph_modules;
  int64_t cuda_graph_warmup_steps = 3;

  // Offload
  bool cpu_offloading = false;
  int64_t cpu_offloading_num_layers = 0;
  bool cpu_offloading_activations = true;
  bool cpu_offloading_weights = false;
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;
  int64_t min_offloaded_tensor_size = 1048576;
  double activation_offload_fraction = 1;
  int64_t delta_offload_bytes_across_pp_ranks = 0;
  std::optional<int64_t> fine_grained_offloading_max_inflight_offloads;
  int64_t mlp_chunks_for_prefill = 1;
  int64_t mlp_chunks_for_training = 1;
  bool batch_invariant_mode = false;
};

template <>
const Schema& schema<ExecutionConfig>();

}  // namespace megatron
