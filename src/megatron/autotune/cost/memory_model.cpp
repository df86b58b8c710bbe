#include "megatron/autotune/cost/memory_model.h"

#include <algorithm>
#include <cmath>

namespace megatron::autotune {
namespace {

constexpr double kGib = 1073741824.0;

// Activation bytes that one token leaves in an average layer.
struct TokenBytes {
  double kept, live;  // with and without recompute
};

TokenBytes activation_bytes(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double h = static_cast<double>(m.hidden), t = plan.tp;
  const bool fp8 = plan.fp8();
  const double e = fp8 ? 1 : 2;
  const double norm = in.stack.compiled_pointwise ? 0 : e * h / t;
  const double qkv = m.latent() ? 2 * (2 * m.query_width() + m.value_width()) / t
                                : 2.0 * double(m.head_dim) * double(m.heads + 2 * m.kv_heads) / t;
  double core = 2 * m.value_width() / t + 4.0 * double(m.heads) / t;
  if (in.stack.attention == AttentionBackend::unfused)
    core += 5.0 * double(m.heads) * static_cast<double>(plan.seq) / t;
  const double attention = 2 * h / t + norm + qkv + core + (fp8 ? m.value_width() / t : 0);
  const auto mlp = [&](double ffn) {
    return 2 * h / t + norm + 2 * (m.gated ? 2 : 1) * ffn / t +
           (in.stack.compiled_pointwise && !fp8 ? 0 : e * ffn / t);
  };
  double moe = 0;
  if (m.moe()) {
    const double k = static_cast<double>(m.topk), f = static_cast<double>(m.moe_ffn) / plan.etp;
    const double imbalance = std::max(1.2, plan.expert_imbalance);
    moe = 4 * h / t + imbalance * (k * h * (e + 2) / t + k * f * ((m.gated ? 4 : 2) + e) / t);
    if (m.shared_ffn > 0) moe += mlp(static_cast<double>(m.shared_ffn));
  }
  const double inner = double(m.mamba_heads) * double(m.mamba_head_dim);
  const double mamba = 2 * h / t + norm + 12 * inner / t;
  const double live = m.attention_share() * attention + m.mlp_share() * mlp(static_cast<double>(m.ffn)) +
                      m.moe_share() * moe + m.mamba_share() * mamba;
  double kept = live;
  switch (plan.recompute) {
    case Recompute::none:
      break;
    case Recompute::core_attn:
      kept -= plan.recompute_share * m.attention_share() * (core - 2 * m.value_width() / t) * 0.9;
      break;
    case Recompute::moe:
      kept -= plan.recompute_share * m.moe_share() * std::max(0.0, moe - 4 * h / t);
      break;
    case Recompute::half_gemms:
      kept *= 1 - 0.45 * plan.recompute_share;
      break;
    case Recompute::full:
      kept += plan.recompute_share * (2 * h / t - live);
      break;
  }
  return {kept, live};
}

}  // namespace

LocalParams local_params(const ModelShape& m, const ParallelPlan& plan, double layers, bool embedding,
                         bool head) {
  const double h = static_cast<double>(m.hidden), t = plan.tp;
  LocalParams result;
  double dense = m.attention_share() * m.attention_params() + m.mlp_share() * m.mlp_params() +
                 m.mamba_share() * m.mamba_params() + m.moe_share() * m.shared_params();
  dense = dense / t + 2 * h + m.moe_share() * h * static_cast<double>(m.experts);
  result.dense = layers * dense;
  result.experts =
      layers * m.moe_share() * static_cast<double>(m.experts) / plan.ep * m.expert_params() / plan.etp;
  const double table = h * static_cast<double>(m.vocab) / t;
  if (embedding) result.dense += table;
  if (head && !(m.tied && embedding)) result.dense += table;
  if (head && m.mtp > 0) {
    result.dense += m.mtp * (dense + 2 * h * h);
    result.experts += m.mtp * static_cast<double>(m.experts) / plan.ep * m.expert_params() / plan.etp;
  }
  return result;
}

LayerSplit layer_split(const ModelShape& model, const ParallelPlan& plan) {
  const int64_t layers = model.layers;
  if (plan.pp == 1)
    return {static_cast<double>(layers), static_cast<double>(layers), static_cast<double>(layers), 0};
  const int64_t last = plan.last_stage_layers > 0 ? plan.last_stage_layers : layers / plan.pp;
  const int64_t left = layers - last, others = plan.pp - 1;
  const int64_t each = left / others, more = left % others;
  return {static_cast<double>(each), static_cast<double>(each + (more > 0)), static_cast<double>(last),
          more > 0 ? static_cast<int>(others - more) : 0};
}

MemoryUse memory_use(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double tokens = static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp;
  const LayerSplit layers = layer_split(m, plan);
  const TokenBytes bytes = activation_bytes(in, plan);
  const int64_t microbatches = plan.microbatches();
  MemoryUse fullest;
  for (const int stage : {0, layers.first_larger, plan.pp - 1}) {
    const bool last = stage == plan.pp - 1;
    const double count = last ? layers.last : stage == layers.first_larger ? layers.larger : layers.first;
    const LocalParams params = local_params(m, plan, count, stage == 0, last);
    MemoryUse use;
    const double grad = in.stack.grad_bytes;
    const double copies = plan.dp() * plan.cp;
    if (plan.lora) {
      use.weights = (plan.fp8() ? 3 : 2) * params.total() * 1.02;
    } else if (plan.shards > 1) {
      const double gathered = 3 * params.total() / std::max(1.0, count);
      use.optimizer = (in.stack.state_bytes * params.total()) / plan.shards;
      if (plan.pp > 1) {
        // Weights and fp32 gradients stay whole between micro-batches.
        use.weights = 2 * params.total();
        use.gradients = 4 * params.total();
      } else {
        use.weights = 2 * params.total() / plan.shards + 2 * gathered;
        use.gradients = grad * params.total() / plan.shards + grad * gathered / 3;
      }
    } else {
      use.weights = (plan.fp8() ? 3 : 2) * params.total();
      use.gradients = grad * params.total();
      use.optimizer = plan.distributed_optimizer
                          ? in.stack.state_bytes * (params.dense / copies + params.experts / plan.edp())
                          : in.stack.state_bytes * params.total();
    }
    double flight = static_cast<double>(std::min<int64_t>(microbatches, plan.pp - stage));
    if (plan.vpp > 1) {
      const double chunks = 2.0 * (plan.pp - stage - 1) + (plan.vpp - 1.0) * plan.pp + 1;
      flight = std::min<double>(chunks, static_cast<double>(microbatches) * plan.vpp) / plan.vpp;
    }
    use.activations = tokens * (bytes.kept * count * flight);
    if (plan.recompute != Recompute::none)
      use.activations += tokens * 1.3 * (bytes.live - std::min(bytes.live, bytes.kept));
    if (last) {
      use.logits = in.stack.logit_bytes * tokens * static_cast<double>(m.vocab) / plan.tp;
      if (m.mtp > 0) use.activations += tokens * bytes.kept * m.mtp;
    }
    use.other = 0.03 * use.total() + (plan.gpus > 1 ? 2.5 : 1.0) * kGib;
    if (use.total() > fullest.total()) fullest = use;
  }
  return fullest;
}

bool fits(const CostInputs& in, const MemoryUse& use) {
  return use.total() <= 0.94 * in.cluster.gpu.memory_gib * kGib;
}

}  // namespace megatron::autotune
