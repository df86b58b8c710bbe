#include "megatron/autotune/cost/memory_model.h"

#include <algorithm>
#include <cmath>

#include "megatron/autotune/cost/unequal.h"

namespace megatron::autotune {
namespace {

constexpr double kGib = 1073741824.0, kMib = 1048576.0;

// Bytes of one token. A layer leaves `kept` of them, `live` without recompute; `again` is what a layer's
// backward pass makes anew at once; `passing` is what it holds for a moment beside that. Weight gradients
// that are put off keep `pending`.
struct TokenBytes {
  double kept, live, again, passing, pending;
};

TokenBytes activation_bytes(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double h = static_cast<double>(m.hidden), t = plan.tp;
  const bool fp8 = plan.fp8();
  const double e = fp8 ? 1 : 2;
  // Norms and residuals are split by sequence parallelism alone.
  const double split = plan.sequence_parallel ? t : 1;
  const double residual = 2 * h / split;
  // GEMMs that overlap with their gathering gather again in the backward pass.
  const bool gathered = in.stack.keeps_gathered_inputs && !plan.tp_overlap;
  const double norm = in.stack.compiled_pointwise           ? 0
                      : gathered || !plan.sequence_parallel ? e * h
                                                            : e * h / t;
  const double qkv = m.latent() ? 2 * (2 * m.query_width() + m.value_width()) / t
                                : 2.0 * double(m.head_dim) * double(m.heads + 2 * m.kv_heads) / t;
  double core = 2 * m.value_width() / t + 4.0 * double(m.heads) / t;
  // Exchanged heads, and several sequences cut in zigzag, leave their output in both orders.
  if (plan.cp > 1 && (plan.cp_exchange == ContextExchange::all_to_all || plan.mbs > 1))
    core += 2 * m.value_width() / t;
  if (in.stack.attention == AttentionBackend::unfused)
    core += 5.0 * double(m.heads) * static_cast<double>(plan.seq) / t;
  const double attention = residual + norm + qkv + core + (fp8 ? m.value_width() / t : 0) + 4 / split;
  const double acts = in.stack.compiled_pointwise && !fp8 ? 0 : e;
  const auto mlp = [&](double ffn) {
    return residual + norm + 2 * (m.gated ? 2 : 1) * ffn / t + acts * ffn / t + 4 / split;
  };
  double moe = 0, routed_acts = 0;
  if (m.moe()) {
    const double k = static_cast<double>(m.topk), f = static_cast<double>(m.moe_ffn) / plan.etp;
    // Routed rows, their weights and places.
    const double imbalance = std::max(1.0, plan.expert_imbalance);
    moe = 4 * h / t + imbalance * (k * h * (e + 2) / t + k * f * ((m.gated ? 4 : 2) + e) / t) +
          (28 * k + 4) / t;
    routed_acts = imbalance * k * f * acts / t;
    if (m.shared_ffn > 0) moe += mlp(static_cast<double>(m.shared_ffn));
  }
  const double inner = double(m.mamba_heads) * double(m.mamba_head_dim);
  const double mamba = residual + norm + 12 * inner / t;
  const double live = m.attention_share() * attention + m.mlp_share() * mlp(static_cast<double>(m.ffn)) +
                      m.moe_share() * moe + m.mamba_share() * mamba;
  double kept = live, again = 0;
  switch (plan.recompute) {
    case Recompute::none:
      break;
    case Recompute::core_attn:
      kept -= plan.recompute_share * m.attention_share() * (core - 2 * m.value_width() / t);
      break;
    case Recompute::moe:
      again = m.moe_share() * std::max(0.0, moe - 4 * h / t);
      kept -= plan.recompute_share * again;
      break;
    case Recompute::half_gemms:
      kept *= 1 - 0.45 * plan.recompute_share;
      again = 0.45 * live;
      break;
    case Recompute::selective: {
      const double mlp_inside = mlp(static_cast<double>(m.ffn)) - residual - norm;
      const double shared_inside = mlp(static_cast<double>(m.shared_ffn)) - residual - norm;
      double norms = 0;
      if (plan.recomputes(recompute_layernorm))
        // Experts take what a rank holds of the norm's result; linears gather it.
        norms = norm * (m.attention_share() + (plan.recomputes(recompute_mlp) ? 0 : m.mlp_share())) +
                std::min(norm, e * h / split) * (plan.recomputes(recompute_moe) ? 0 : m.moe_share());
      double saved = 0;
      const auto save = [&](double bytes) {
        saved += bytes;
        again = std::max(again, bytes);
      };
      if (plan.recomputes(recompute_mlp)) {
        save(m.mlp_share() * (mlp_inside + residual));
        // The norm's result is kept as it was before it was gathered, beside the residual.
        saved += m.mlp_share() * (norm - 2 * residual);
      }
      if (plan.recomputes(recompute_mlp_act) && !plan.recomputes(recompute_mlp))
        save(m.mlp_share() * acts * static_cast<double>(m.ffn) / t);
      if (plan.recomputes(recompute_moe))
        save(m.moe_share() * std::max(0.0, moe - 4 * h / t));
      else if (plan.recomputes(recompute_moe_act))
        save(m.moe_share() * routed_acts);
      if (plan.recomputes(recompute_shared_experts) && !plan.recomputes(recompute_moe))
        save(m.moe_share() * shared_inside);
      if (plan.recomputes(recompute_mla_up_proj))
        save(m.attention_share() * std::max(0.0, qkv - 2.0 * double(m.q_lora + m.kv_lora + m.rope)));
      // A layer keeps its input at least.
      kept = std::max(residual, kept - plan.recompute_share * (saved + norms));
      break;
    }
    case Recompute::full:
      kept += plan.recompute_share * (residual - live);
      // Where some layers are kept, they are gone by the time that the first ones are made again.
      again = plan.recompute_share < 1 ? residual : live;
      break;
  }
  // What waits in host memory is on its way for one layer.
  if (plan.offload_share > 0) {
    kept *= 1 - plan.offload_share;
    again += live;
  }
  const double widest = std::max(m.mlp_share() > 0 ? static_cast<double>(m.ffn) : 0.0,
                                 m.moe() ? double(m.topk * m.moe_ffn) / plan.etp : 0.0);
  const double passing = 2 * std::max(widest, m.value_width()) / t + 4 * h + 280;
  // A linear's weight gradient needs its input and the whole gradient of its output; what experts and states
  // keep for theirs is about what their forward pass left.
  const double pending = m.attention_share() * (norm + qkv + 2 * m.value_width() / t + 2 * h) +
                         m.mlp_share() * (norm + 2 * (m.gated ? 2 : 1) * static_cast<double>(m.ffn) / t +
                                          acts * static_cast<double>(m.ffn) / t + 2 * h) +
                         m.moe_share() * moe + m.mamba_share() * mamba;
  return {kept, live, again, passing, pending};
}

// Micro-batches' worth of activations that a stage holds: as kept, and with what weight gradients that were
// put off still need.
struct InFlight {
  double kept = 1, whole = 0;
};

InFlight in_flight(const ParallelPlan& plan, int stage) {
  const auto microbatches = static_cast<double>(plan.microbatches());
  if (plan.schedule != Schedule::one_f_one_b) {
    const double all = std::min<double>(microbatches, plan.pp);
    double whole = std::min<double>(all, stage + 1.0);
    // The first stage of a V has the last chunk, too, whose weight gradients wait for the fewest others.
    if (plan.schedule == Schedule::zb_v && stage == 0)
      whole = microbatches > plan.pp ? 0.5 : 0.5 * all + (microbatches == plan.pp ? 0.5 : 0);
    return {all - whole, whole};
  }
  if (plan.vpp == 1) return {std::min<double>(microbatches, plan.pp - stage), 0};
  const double chunks = 2.0 * (plan.pp - stage - 1) + (plan.vpp - 1.0) * plan.pp + 1;
  return {std::min<double>(chunks, microbatches * plan.vpp) / plan.vpp, 0};
}

// The padding of a vocabulary gives ranks equal parts in whole tiles.
double padded_vocabulary(const ModelShape& m, int tp) {
  const double unit = 128.0 * tp;
  return std::ceil(static_cast<double>(m.vocab) / unit) * unit;
}

// Rows of logits that exist at once: about a GiB of them, in equal chunks.
double logit_rows(double rows, double columns, double width) {
  const double fit = std::max(256.0, 1.25 * kGib / std::max(1.0, width * columns));
  const double chunks = std::max(1.0, std::ceil(rows / std::exp2(std::floor(std::log2(fit)))));
  return std::min(rows, std::ceil(std::ceil(rows / chunks) / 128) * 128);
}

// Weights, gradients and optimizer states of one stage.
MemoryUse state_bytes(const CostInputs& in, const ParallelPlan& plan, const LocalParams& params,
                      double layers) {
  MemoryUse use;
  const double grad = in.stack.grad_bytes, all = params.total();
  const double copies = static_cast<double>(plan.dp()) * plan.cp;
  // The largest unit that is gathered or reduced at once: a layer, or the embedding.
  const double table = static_cast<double>(in.model.hidden) * padded_vocabulary(in.model, plan.tp) / plan.tp;
  const double unit = std::max(table, all / std::max(1.0, layers));
  if (plan.lora) {
    use.weights = (plan.fp8() ? 3 : 2) * all * 1.02;
  } else if (plan.shards > 1) {
    use.optimizer = in.stack.state_bytes * all / plan.shards;
    if (plan.pp > 1) {
      // Weights and fp32 gradients stay whole between micro-batches.
      use.weights = 2 * all;
      use.gradients = 4 * all;
    } else {
      use.weights = 2 * all / plan.shards + 4 * unit;
      use.gradients = grad * all / plan.shards + grad * unit * (1 + 1.0 / plan.shards);
    }
    use.other = (layers + 2) * 6 * kMib;
  } else {
    use.weights = (plan.fp8() ? 3 : 2) * all;
    use.gradients = grad * all;
    if (plan.shard_grads) {
      use.gradients = grad * all / copies + grad * unit * (1.3 + 1 / copies);
      use.other = (layers + 2) * 4 * kMib;
    }
    use.optimizer = plan.distributed_optimizer
                        ? in.stack.state_bytes * (params.dense / copies + params.experts / plan.edp())
                        : in.stack.state_bytes * all;
  }
  // Allocations are rounded up, each chunk's by themselves.
  use.other += (10 + 6 * (plan.vpp - 1)) * kMib;
  return use;
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
  const double table = h * padded_vocabulary(m, plan.tp) / t;
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

namespace {

// The ranks that are left of a reduced replica hold what those that are lost held.
MemoryUse unequal_use(const CostInputs& in, const ParallelPlan& plan) {
  ParallelPlan whole = plan;
  whole.tp_spares = whole.reduced_replicas = 0;
  MemoryUse use = memory_use(in, whole);
  const double more = fullest_share(in.model, plan) * plan.tp;
  for (double MemoryUse::*part :
       {&MemoryUse::weights, &MemoryUse::gradients, &MemoryUse::activations, &MemoryUse::logits})
    use.*part *= more;
  // States are split over as many positions of a group as the smallest has.
  use.optimizer *= static_cast<double>(plan.tp) / (plan.tp - plan.tp_spares);
  return use;
}

}  // namespace

MemoryUse memory_use(const CostInputs& in, const ParallelPlan& plan) {
  if (plan.unequal()) return unequal_use(in, plan);
  const ModelShape& m = in.model;
  const double tokens = static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp;
  const double h = static_cast<double>(m.hidden), split = plan.sequence_parallel ? plan.tp : 1;
  const LayerSplit layers = layer_split(m, plan);
  const TokenBytes bytes = activation_bytes(in, plan);
  const double offset = (plan.gpus > 1 ? 2.5 : 1.0) * kGib;
  const double columns = padded_vocabulary(m, plan.tp) / plan.tp;
  double logits = in.stack.logit_bytes * columns;  // of a token, on the average
  if (in.stack.chunked_logits) logits *= logit_rows(tokens, columns, in.stack.logit_bytes) / tokens;
  MemoryUse fullest;
  for (const int stage : {0, layers.first_larger, plan.pp - 1}) {
    // A V gives the first stage the loss, too.
    const bool last = plan.schedule == Schedule::zb_v ? stage == 0 : stage == plan.pp - 1;
    const double count = stage == plan.pp - 1           ? layers.last
                         : stage == layers.first_larger ? layers.larger
                                                        : layers.first;
    const LocalParams params = local_params(m, plan, count, stage == 0, last);
    MemoryUse use = state_bytes(in, plan, params, count);
    if (plan.forward_only) {
      // Layers hand on and forget.
      use.gradients = use.optimizer = 0;
      use.activations = tokens * (bytes.live + bytes.passing);
      if (last) use.logits = tokens * logits;
    } else {
      const InFlight flight = in_flight(plan, stage);
      use.activations = tokens * count * (bytes.kept * flight.kept + bytes.pending * flight.whole);
      if (last && m.mtp > 0) use.activations += tokens * bytes.kept * m.mtp;
      // Either the loss or a layer's backward pass needs the most beside what is kept.
      const double again = plan.schedule == Schedule::one_f_one_b ? bytes.again : 0;
      // A message from the stage before, or to the next while a module is made again; chunks that take turns
      // have two more on their way where there are stages between.
      const bool again_whole = plan.recomputes(recompute_mlp) || plan.recomputes(recompute_moe);
      const double messages =
          (stage > 0 || (plan.pp > 1 && again_whole) ? 1 : 0) + (plan.vpp > 1 && plan.pp > 2 ? 2 : 0);
      const double backward = bytes.passing + again + messages * 2 * h / split;
      const double loss = last ? logits + 4 * h + std::max(1.0, messages) * 2 * h / split + 816 : 0;
      // While weight gradients are put off, the loss of the last micro-batch comes before its backward pass:
      // what that will put off is still as the forward pass kept it.
      // A V with as many micro-batches as stages has its last loss while no gradient waits.
      double before = flight.whole >= 1 ? count * (bytes.kept - bytes.pending) : 0;
      if (plan.schedule == Schedule::zb_v) before = plan.microbatches() == plan.pp ? -4 * h / split : 0;
      if (loss + before >= backward) {
        use.logits = tokens * logits;
        use.activations += tokens * (loss + before - logits);
      } else {
        use.activations += tokens * backward;
      }
    }
    use.other += 0.03 * use.total() + offset;
    if (use.total() > fullest.total()) fullest = use;
  }
  return fullest;
}

double kept_activation_bytes(const CostInputs& in, const ParallelPlan& plan) {
  const double tokens = static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp;
  return tokens * activation_bytes(in, plan).kept * layer_split(in.model, plan).first;
}

bool fits(const CostInputs& in, const MemoryUse& use) {
  return use.total() <= 0.94 * in.cluster.gpu.memory_gib * kGib;
}

}  // namespace megatron::autotune
