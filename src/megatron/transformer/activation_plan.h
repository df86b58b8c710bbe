#pragma once

#include <vector>

#include "megatron/autograd/host_offload.h"
#include "megatron/autograd/rematerialize.h"
#include "megatron/config/schema/execution_config.h"

namespace megatron {

// Which activations a model keeps from forward to backward, which it recomputes, and which wait on the
// host.
struct ActivationPlan {
  static ActivationPlan from(const ExecutionConfig& config);
  // Of one layer of a chunk: modules may be made again in the first layers alone.
  ActivationPlan of_layer(int64_t layer) const;

  // Full recompute: layers [first, first + n) of a chunk that run as one region keep nothing but its input.
  // The number of layers of the region that begins at `layer` of a chunk; 0: the layer keeps what it needs.
  int64_t region_at(int64_t layer) const;

  bool full() const { return uniform_layers > 0 || block_layers > 0; }

  bool fixed_shapes = false;   // no shape depends on what a router chose: a step is captured
  int64_t uniform_layers = 0;  // all layers, in regions of this many
  int64_t block_layers = 0;    // the first layers of a chunk, each a region
  bool split_inputs = false;   // each tensor-parallel rank keeps a part of a region's input

  // Selective recompute
  bool core_attention = false, layernorm = false, mlp = false;
  bool mlp_activation = false;  // from fc1's result, for the gradient of fc2
  bool experts = false, expert_activation = false, shared_experts = false;
  bool latent_up_projection = false;  // from latent vectors to queries, keys and values
  bool delta_norm = false;            // the gated norm of a delta net's output
  bool delta_projection = false;      // a gated delta product's input projection and convolution
  bool delta_convolution = false;     // its convolution alone
  bool hyper_connections = false;     // what layers read of residual streams and how they mix them
  struct Limit {
    bool ActivationPlan::*module;
    int64_t layers;
  };
  std::vector<Limit> limits;

  // Offload
  int64_t offloaded_layers = 0;  // the first layers of a chunk, whole
  struct Modules {
    bool attention_norm = false, qkv = false, core_attention = false, projection = false, mlp_norm = false;
    bool expert_fc1 = false, expert_activation = false;
    bool any() const {
      return attention_norm || qkv || core_attention || projection || mlp_norm || expert_fc1 ||
             expert_activation;
    }
  } offloaded;
  OffloadOptions offload_options = {.min_elements = 0};

  bool offloads() const { return offloaded_layers > 0 || offloaded.any(); }
};

// Within its life saved tensors go to the host, where that is wanted.
inline PackerScope offload_scope(RankContext& ctx, HostOffload* host, bool wanted) {
  return PackerScope(ctx, host && wanted ? host : ctx.packer);
}

}  // namespace megatron
