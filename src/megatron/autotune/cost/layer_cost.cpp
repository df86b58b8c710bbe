#include "megatron/autotune/cost/layer_cost.h"

#include <algorithm>
#include <cmath>

#include "megatron/autotune/cost/kernel_cost.h"
#include "megatron/autotune/measure/op_pricer.h"

namespace megatron::autotune {
namespace {

constexpr double kMilliseconds = 1e-3;

GemmType gemm_type(Precision precision) {
  if (precision == Precision::nvfp4) return GemmType::bits4;
  return precision >= Precision::fp8 ? GemmType::bits8 : GemmType::bits16;
}

// Tokens of a micro-batch on one rank, before sequence parallelism divides them.
double tokens_of(const ParallelPlan& plan) {
  return static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp;
}

// What was measured, where there is a database of that; else the shaped model.
double linear_seconds(const CostInputs& in, GemmType type, OpPricer::LinearPass pass, double rows,
                      double width_in, double width_out, double groups) {
  if (in.ops != nullptr && type != GemmType::bits4 && rows >= 1 && width_in >= 1 && width_out >= 1)
    if (const auto measured =
            in.ops->linear_seconds(pass, type == GemmType::bits8, rows, width_in, width_out, groups))
      return *measured;
  const GpuSpec& gpu = in.cluster.gpu;
  switch (pass) {
    case OpPricer::LinearPass::forward:
      return gemm_seconds(gpu, in.constants, type, rows, width_out, width_in, groups);
    case OpPricer::LinearPass::input_gradient:
      return gemm_seconds(gpu, in.constants, type, rows, width_in, width_out, groups);
    case OpPricer::LinearPass::weight_gradient:
      break;
  }
  return gemm_seconds(gpu, in.constants, type, width_in, width_out, rows, groups);
}

// Adds a linear layer: forward, input gradient and weight gradient.
void add_linear(const CostInputs& in, const ParallelPlan& plan, GemmType type, double rows, double width_in,
                double width_out, double groups, double times, PassPair& pair) {
  const GpuSpec& gpu = in.cluster.gpu;
  using enum OpPricer::LinearPass;
  pair.forward.gemm += times * linear_seconds(in, type, forward, rows, width_in, width_out, groups);
  pair.backward.gemm += times * linear_seconds(in, type, input_gradient, rows, width_in, width_out, groups);
  // Adapters of rank 32 or so take about a tenth of the weight gradients that they replace.
  const double weight = times * (plan.lora ? 0.1 : 1.0) *
                        linear_seconds(in, type, weight_gradient, rows, width_in, width_out, groups);
  pair.backward.gemm += weight;
  pair.backward.weight += weight;
  if (type != GemmType::bits16) {
    // Casts read two bytes and write two forms of one byte each.
    pair.forward.memory += times * memory_seconds(gpu, in.constants, 4 * rows * width_in * groups);
    pair.backward.memory += times * memory_seconds(gpu, in.constants, 4 * rows * width_out * groups);
  }
}

// Operands that are gathered in fp8 are cast before, by each rank its share; what the weight gradient reads
// is turned after. `pair` has them as casts of the whole: once forward and once backward.
void share_casts(const CostInputs& in, const ParallelPlan& plan, PassPair& pair) {
  if (gemm_type(plan.precision) == GemmType::bits16 || !plan.tp_overlap || plan.tp == 1) return;
  const double elements = tokens_of(plan) * static_cast<double>(in.model.hidden);
  const double saved = memory_seconds(in.cluster.gpu, in.constants, elements * (2 - 3.0 / plan.tp));
  pair.forward.memory -= saved;
  pair.backward.memory -= saved;
}

void add_bytes(const CostInputs& in, double forward, double backward, PassPair& pair) {
  pair.forward.memory += memory_seconds(in.cluster.gpu, in.constants, forward * in.stack.pointwise);
  pair.backward.memory += memory_seconds(in.cluster.gpu, in.constants, backward * in.stack.pointwise);
}

bool softmax_is_fused(const CostInputs& in, const ParallelPlan& plan) {
  return !in.stack.softmax_in_fours || (in.model.heads / plan.tp * plan.mbs) % 4 == 0;
}

// What context-parallel ranks exchange for one layer's attention.
void add_context_exchange(const CostInputs& in, const ParallelPlan& plan, const AttentionSeconds& core,
                          PassPair& pair) {
  const ModelShape& m = in.model;
  const double rows = tokens_of(plan), t = plan.tp;
  // Bytes of a rank's keys and values.
  const double keys =
      4 * rows * (m.latent() ? double(m.kv_lora + m.rope) / 2 : double(m.kv_heads) * m.head_dim / t);
  const Placement place = place_group(in.cluster, plan.cp, plan.tp);
  if (plan.cp_exchange == ContextExchange::ring) {
    // Keys and values of the other ranks come around the ring beside attention; their gradients go twice.
    const double rate = place.domains > 1 ? in.constants.nic * network_gbs(in.cluster, {1, place.domains}, 1)
                                          : in.constants.nvlink * in.cluster.gpu.nvlink_gbs;
    const double seconds = keys * (plan.cp - 1) / (rate * 1e9);
    pair.forward.cp += exposed_seconds(in.constants, seconds, core.forward);
    pair.backward.cp += exposed_seconds(in.constants, 2 * seconds, core.backward);
    // Each step of the ring is merged with the ones before it in fp32.
    const double merged = 8 * rows * m.value_width() / t * plan.cp;
    pair.forward.memory += memory_seconds(in.cluster.gpu, in.constants, merged);
    pair.backward.memory += memory_seconds(in.cluster.gpu, in.constants, 1.5 * merged);
    return;
  }
  if (plan.cp_exchange == ContextExchange::all_gather) {
    // Nothing hides the gathering: attention needs all keys. Gradients are gathered keys and a reduction.
    const double whole = m.latent() ? 2 * rows * (m.query_width() + m.value_width()) / t : keys;
    const double gather = collective_seconds(in, whole * plan.cp, plan.cp, plan.tp);
    pair.forward.cp += gather;
    pair.backward.cp += 2 * gather;
    return;
  }
  // Queries, keys, values and outputs are exchanged; an all-to-all reaches half of a ring's rate.
  const double widths = m.latent() ? 2 * m.query_width() + 2 * m.value_width()
                                   : 2.0 * double(m.head_dim) * double(m.heads + m.kv_heads);
  const double bytes = 2 * rows * widths / t * (plan.cp - 1) / plan.cp;
  const double outside = place.domains > 1 ? 1 - double(place.members) / plan.cp : 0;
  const double nvlink = 0.5 * in.constants.nvlink * in.cluster.gpu.nvlink_gbs * 1e9;
  const double nic = in.constants.nic * network_gbs(in.cluster, {1, place.domains}, 1) * 1e9;
  const double seconds =
      4 * in.constants.latency_us * 1e-6 + std::max(bytes * (1 - outside) / nvlink, bytes * outside / nic);
  pair.forward.cp += seconds;
  pair.backward.cp += seconds;
}

PassPair attention_block(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double rows = tokens_of(plan), t = plan.tp, h = static_cast<double>(m.hidden);
  const GemmType type = gemm_type(plan.precision);
  PassPair pair;
  if (m.latent()) {
    if (m.q_lora > 0) {
      add_linear(in, plan, type, rows / t, h, m.q_lora, 1, 1, pair);
      add_linear(in, plan, type, rows, m.q_lora, m.query_width() / t, 1, 1, pair);
    } else {
      add_linear(in, plan, type, rows, h, m.query_width() / t, 1, 1, pair);
    }
    add_linear(in, plan, type, rows / t, h, m.kv_lora + m.rope, 1, 1, pair);
    add_linear(in, plan, type, rows, m.kv_lora, double(m.heads) * (m.nope + m.v_dim) / t, 1, 1, pair);
  } else {
    add_linear(in, plan, type, rows, h, double(m.head_dim) * (m.heads + 2 * m.kv_heads) / t, 1, 1, pair);
  }
  add_linear(in, plan, type, rows, m.value_width() / t, h, 1, 1, pair);
  if (!m.latent()) share_casts(in, plan, pair);

  // A ring works on half of each rank's tokens at a time, so that causal ranks have equal work; where keys
  // are gathered, on two chunks against all keys before them; where heads are exchanged, on whole sequences.
  const double chunks = plan.cp == 1 || plan.cp_exchange == ContextExchange::all_to_all ? 1
                        : plan.cp_exchange == ContextExchange::all_gather               ? 2
                                                                                        : 2.0 * plan.cp;
  const double kernel_seq = static_cast<double>(plan.context()) / chunks;
  AttentionShape shape{rows,
                       in.stack.attention == AttentionBackend::unfused ? double(plan.seq) : kernel_seq,
                       m.mean_context(plan.context()),
                       m.heads / t,
                       m.latent() ? double(m.nope + m.rope) : double(m.head_dim),
                       m.latent() ? double(m.v_dim) : double(m.head_dim),
                       m.latent(),
                       static_cast<double>(plan.mbs)};
  const bool unfused_sinks =
      m.sinks && in.stack.attention == AttentionBackend::fused && !in.stack.fused_sinks;
  const AttentionBackend backend = unfused_sinks ? AttentionBackend::unfused : in.stack.attention;
  AttentionSeconds core =
      attention_seconds(in.cluster.gpu, in.constants, backend, shape, softmax_is_fused(in, plan));
  if (in.ops != nullptr && backend == AttentionBackend::fused && plan.cp == 1 && !m.latent()) {
    const double queries = rows * shape.heads;
    if (const auto forward = in.ops->attention_seconds(false, queries, shape.context, shape.qk_dim))
      core.forward = *forward;
    if (const auto backward = in.ops->attention_seconds(true, queries, shape.context, shape.qk_dim))
      core.backward = *backward;
  }
  pair.forward.attention += core.forward;
  pair.backward.attention += core.backward;
  if (plan.recompute == Recompute::core_attn) pair.backward.attention += core.forward * plan.recompute_share;

  const double kv = m.latent() ? double(m.heads) * (m.nope + m.v_dim) : double(m.kv_heads) * m.head_dim;
  const double turned = 4 * rows * (m.query_width() + kv) / t;
  add_bytes(in, 10 * rows * h / t + turned, 12 * rows * h / t + turned, pair);

  if (plan.cp > 1) add_context_exchange(in, plan, core, pair);
  if (plan.recomputes(recompute_mla_up_proj)) {
    const GpuSpec& gpu = in.cluster.gpu;
    double again = gemm_seconds(gpu, in.constants, type, rows, double(m.heads) * (m.nope + m.v_dim) / t,
                                static_cast<double>(m.kv_lora));
    if (m.q_lora > 0)
      again += gemm_seconds(gpu, in.constants, type, rows, m.query_width() / t, double(m.q_lora));
    pair.backward.gemm += plan.recompute_share * again;
  }
  return pair;
}

// `again`: the module of selective recompute that it is.
PassPair mlp_block(const CostInputs& in, const ParallelPlan& plan, double ffn,
                   RecomputeModule again = recompute_mlp) {
  const double rows = tokens_of(plan), t = plan.tp, h = static_cast<double>(in.model.hidden);
  const GemmType type = gemm_type(plan.precision);
  const bool gated = in.model.gated;
  PassPair pair;
  add_linear(in, plan, type, rows, h, (gated ? 2 : 1) * ffn / t, 1, 1, pair);
  add_linear(in, plan, type, rows, ffn / t, h, 1, 1, pair);
  share_casts(in, plan, pair);
  const double activation = (gated ? 6 : 4) * rows * ffn / t;
  add_bytes(in, 10 * rows * h / t + activation, 12 * rows * h / t + (gated ? 10 : 6) * rows * ffn / t, pair);
  if (plan.recomputes(again)) {
    PassCost forward = pair.forward;
    pair.backward += plan.recompute_share * forward;
  } else if (again == recompute_mlp && plan.recomputes(recompute_mlp_act)) {
    pair.backward.memory +=
        plan.recompute_share * memory_seconds(in.cluster.gpu, in.constants, activation * in.stack.pointwise);
  }
  return pair;
}

PassPair mamba_block(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double rows = tokens_of(plan), t = plan.tp, h = static_cast<double>(m.hidden);
  const double inner = double(m.mamba_heads) * m.mamba_head_dim;
  const double states = 2.0 * double(m.mamba_groups * m.mamba_state);
  PassPair pair;
  add_linear(in, plan, gemm_type(plan.precision), rows, h, (2 * inner + states + m.mamba_heads) / t, 1, 1,
             pair);
  add_linear(in, plan, gemm_type(plan.precision), rows, inner / t, h, 1, 1, pair);
  // The scan works in chunks of 128 tokens at a fifth of what GEMMs reach; convolution, gate and norm move
  // bytes.
  const double scan = 2 * rows * (128 + 2.0 * double(m.mamba_state)) * inner / t /
                      (0.2 * in.constants.gemm16 * in.cluster.gpu.tflops16 * 1e12);
  pair.forward.attention += scan;
  pair.backward.attention += 2.5 * scan;
  add_bytes(in, 10 * rows * h / t + 16 * rows * (inner + states) / t,
            12 * rows * h / t + 28 * rows * (inner + states) / t, pair);
  return pair;
}

PassPair moe_block(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double h = static_cast<double>(m.hidden), f = static_cast<double>(m.moe_ffn);
  const double tokens = tokens_of(plan) / plan.tp;
  const double routed = tokens * m.topk * plan.etp * plan.expert_imbalance;
  const double experts = static_cast<double>(m.experts) / plan.ep;
  const double rows = routed / experts;
  const GemmType type = gemm_type(plan.precision);
  const bool gated = m.gated;
  PassPair pair;
  add_linear(in, plan, type, rows, h, (gated ? 2 : 1) * f / plan.etp, experts, 1, pair);
  add_linear(in, plan, type, rows, f / plan.etp, h, experts, 1, pair);
  add_linear(in, plan, GemmType::bits16, tokens, h, static_cast<double>(m.experts), 1, 1, pair);
  if (m.shared_ffn > 0) {
    const PassPair shared = mlp_block(in, plan, static_cast<double>(m.shared_ffn), recompute_shared_experts);
    pair.forward += shared.forward;
    pair.backward += shared.backward;
  }
  const double width = routed * f / plan.etp;
  add_bytes(in, width * (gated ? 6 : 4) + 8 * routed * h + 12 * tokens * h,
            width * (gated ? 10 : 6) + 10 * routed * h + 16 * tokens * h, pair);
  if (plan.recompute == Recompute::moe || plan.recomputes(recompute_moe)) {
    PassCost forward = pair.forward;
    pair.backward += plan.recompute_share * forward;
  } else if (plan.recomputes(recompute_moe_act)) {
    pair.backward.memory +=
        plan.recompute_share *
        memory_seconds(in.cluster.gpu, in.constants, width * (gated ? 6 : 4) * in.stack.pointwise);
  }
  return pair;
}

// Norm inputs are gathered before a block's first GEMM and its results are reduced after the last one.
double tensor_exchange(const CostInputs& in, const ParallelPlan& plan, double blocks) {
  if (plan.tp == 1) return 0;
  const double bytes = 2 * tokens_of(plan) * static_cast<double>(in.model.hidden);
  // Gathered operands travel in fp8 where GEMMs take them so.
  const double width = plan.fp8() && plan.tp_overlap ? 1.5 : 2;
  return blocks * width * collective_seconds(in, bytes, plan.tp, 1);
}

void add_host(const CostInputs& in, const ParallelPlan& plan, double dense, double moe, PassPair& pair) {
  if (plan.cuda_graphs) return;
  const CostConstants& c = in.constants;
  const double softmax = softmax_is_fused(in, plan) ? 0 : c.host_softmax_ms;
  const double wait = c.host_wait_ms * (plan.tp - 1);
  const double width = static_cast<double>(in.model.hidden) / 2048;
  const double speed = kMilliseconds * in.stack.host / in.cluster.host_speed * std::pow(width, -c.host_width);
  pair.forward.host += speed * (dense * (c.host_forward_ms + softmax + wait) + moe * 0.4 * c.host_moe_ms);
  pair.backward.host +=
      speed * (dense * (c.host_backward_ms + 2 * softmax + wait) + moe * 0.6 * c.host_moe_ms);
}

void add_scaled(PassPair& sum, double times, const PassPair& part) {
  if (times <= 0) return;
  sum.forward += times * part.forward;
  sum.backward += times * part.backward;
}

}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  gemm += other.gemm;
  attention += other.attention;
  memory += other.memory;
  tp += other.tp;
  cp += other.cp;
  ep += other.ep;
  host += other.host;
  weight += other.weight;
  return *this;
}

PassCost operator*(double factor, PassCost pass) {
  pass.gemm *= factor;
  pass.attention *= factor;
  pass.memory *= factor;
  pass.tp *= factor;
  pass.cp *= factor;
  pass.ep *= factor;
  pass.host *= factor;
  pass.weight *= factor;
  return pass;
}

double exposed_seconds(const CostConstants& constants, double communication, double window) {
  return std::max(constants.exposed * communication, communication - 0.9 * window);
}

double collective_seconds(const CostInputs& in, double bytes, int ranks, int stride) {
  if (ranks <= 1) return 0;
  const Placement place = place_group(in.cluster, ranks, stride);
  const double latency = in.constants.latency_us * 1e-6;
  double seconds = 0;
  if (place.members > 1)
    seconds =
        bytes * (place.members - 1) / place.members / (in.constants.nvlink * in.cluster.gpu.nvlink_gbs * 1e9);
  if (place.domains > 1) {
    const double network = bytes * (place.domains - 1) / place.domains /
                           (in.constants.nic * network_gbs(in.cluster, place, in.constants.rails) * 1e9);
    seconds = std::max(seconds, network);
  }
  return latency * (1 + 0.25 * std::log2(static_cast<double>(place.domains))) + seconds;
}

ExchangeSeconds exchange_seconds(const CostInputs& in, const ParallelPlan& plan) {
  if (plan.ep == 1) return {};
  const ModelShape& m = in.model;
  const double token_bytes = tokens_of(plan) / plan.tp * static_cast<double>(m.hidden) * 2;
  const double routed = token_bytes * static_cast<double>(m.topk) * plan.etp * plan.expert_imbalance;
  const Placement place = place_group(in.cluster, plan.ep, plan.etp);
  const double nvlink = 0.5 * in.constants.nvlink * in.cluster.gpu.nvlink_gbs * 1e9;
  const double nic = in.constants.nic * network_gbs(in.cluster, {1, place.domains}, 1) * 1e9;
  const double local = static_cast<double>(place.members) / plan.ep;
  double inside =
      routed * (plan.deduplicating_dispatcher ? 1 - 1.0 / plan.ep : local - 1.0 / plan.ep) / nvlink;
  double outside = 0;
  if (place.domains > 1) {
    const double nodes = place.domains;
    double distinct = nodes * (1 - std::pow(1 - 1 / nodes, static_cast<double>(m.topk)));
    if (m.node_limit > 0) distinct = std::min(distinct, static_cast<double>(m.node_limit));
    outside = plan.deduplicating_dispatcher ? token_bytes * plan.etp * distinct * (nodes - 1) / nodes / nic
                                            : routed * (1 - local) / nic;
  }
  return {in.constants.latency_us * 1e-6 + std::max(inside, outside), outside > inside};
}

LayerShape layer_shape(const ModelShape& model, const ParallelPlan& plan) {
  return {model.hidden, model.heads, model.ffn, model.experts, plan.seq,
          plan.mbs,     plan.tp,     plan.cp,   plan.ep,       plan.fp8()};
}

namespace {

// How many of each block a layer holds.
struct BlockShares {
  double attention = 0, mlp = 0, mamba = 0, moe = 0;
};

BlockShares shares_of(const ModelShape& m, LayerType kind) {
  switch (kind) {
    case LayerType::average:
      break;
    case LayerType::dense:
      return {1, 1, 0, 0};
    case LayerType::moe:
      return {m.attention_layers < 0 ? 1.0 : 0.0, 0, 0, 1};
    case LayerType::attention:
      return {1, 0, 0, 0};
    case LayerType::mamba:
      return {0, 0, 1, 0};
    case LayerType::mlp:
      return {0, 1, 0, 0};
  }
  return {m.attention_share(), m.mlp_share(), m.mamba_share(), m.moe_share()};
}

}  // namespace

PassPair layer_cost(const CostInputs& in, const ParallelPlan& plan) {
  return layer_cost_of(in, plan, LayerType::average);
}

StagePrices stage_prices(const CostInputs& in, const ParallelPlan& plan) {
  return {layer_cost(in, plan), embedding_cost(in, plan), head_cost(in, plan)};
}

PassPair layer_cost_of(const CostInputs& in, const ParallelPlan& plan, LayerType kind) {
  const ModelShape& m = in.model;
  const BlockShares share = shares_of(m, kind);
  PassPair pair;
  if (share.attention > 0) add_scaled(pair, share.attention, attention_block(in, plan));
  if (share.mlp > 0) add_scaled(pair, share.mlp, mlp_block(in, plan, static_cast<double>(m.ffn)));
  if (share.mamba > 0) add_scaled(pair, share.mamba, mamba_block(in, plan));
  if (share.moe > 0) add_scaled(pair, share.moe * in.stack.moe, moe_block(in, plan));
  const double blocks = share.attention + share.mlp + share.mamba + (m.shared_ffn > 0 ? share.moe : 0);
  const double tensor = tensor_exchange(in, plan, blocks);
  // Without sequence parallelism the same volume goes as all-reduces.
  pair.forward.tp = plan.tp_overlap ? exposed_seconds(in.constants, tensor, pair.forward.gemm) : tensor;
  pair.backward.tp = plan.tp_overlap ? exposed_seconds(in.constants, tensor, pair.backward.gemm) : tensor;
  // Where weight gradients are put off, no GEMM hides the sum of the input's gradient, and W gathers the
  // input again by itself.
  if (plan.tp_overlap && plan.schedule != Schedule::one_f_one_b)
    pair.backward.tp = tensor + exposed_seconds(in.constants, tensor / 2, pair.backward.gemm);
  if (share.moe > 0 && plan.ep > 1) {
    const double exchange = 2 * share.moe * in.stack.moe * exchange_seconds(in, plan).seconds;
    if (plan.ep_overlap) {
      // Dispatch and combine of one micro-batch run beside another's passes.
      const double both =
          exposed_seconds(in.constants, 2 * exchange, pair.forward.compute() + pair.backward.compute());
      pair.forward.ep = pair.backward.ep = both / 2;
    } else {
      pair.forward.ep = pair.backward.ep = exchange;
    }
    if (plan.recompute == Recompute::moe || plan.recomputes(recompute_moe))
      pair.backward.ep += plan.recompute_share * exchange;
  }
  add_host(in, plan, 1 - share.moe, share.moe, pair);
  pair.forward.memory += in.stack.forward_kernels * in.constants.kernel_us * 1e-6;
  pair.backward.memory += in.stack.backward_kernels * in.constants.kernel_us * 1e-6;
  if (plan.recompute == Recompute::half_gemms) {
    pair.backward.gemm += 0.5 * plan.recompute_share * pair.forward.gemm;
    pair.backward.memory += plan.recompute_share * pair.forward.memory;
  }
  if (plan.recomputes(recompute_layernorm)) {
    // Norms read the stream and write their result; what was gathered for a GEMM is gathered again.
    const double rows = tokens_of(plan) * static_cast<double>(m.hidden) / plan.tp;
    pair.backward.memory +=
        plan.recompute_share * blocks * memory_seconds(in.cluster.gpu, in.constants, 4 * rows);
    if (in.stack.keeps_gathered_inputs && !plan.tp_overlap)
      pair.backward.tp += plan.recompute_share * 0.5 * pair.forward.tp;
  }
  if (plan.recompute == Recompute::full) pair.backward += plan.recompute_share * pair.forward;
  if (in.measured != nullptr && !in.measured->layers.empty()) {
    const double factor = in.measured->layer_factor(layer_shape(m, plan));
    pair.forward = factor * pair.forward;
    pair.backward = factor * pair.backward;
  }
  if (plan.forward_only) pair.backward = {};
  return pair;
}

PassPair embedding_cost(const CostInputs& in, const ParallelPlan& plan) {
  const double rows = tokens_of(plan), h = static_cast<double>(in.model.hidden);
  PassPair pair;
  add_bytes(in, 6 * rows * h / plan.tp, 8 * rows * h / plan.tp, pair);
  if (plan.tp > 1) pair.forward.tp = pair.backward.tp = collective_seconds(in, 2 * rows * h, plan.tp, 1);
  if (plan.forward_only) pair.backward = {};
  return pair;
}

PassPair head_cost(const CostInputs& in, const ParallelPlan& plan) {
  const double rows = tokens_of(plan), h = static_cast<double>(in.model.hidden);
  const double vocab = static_cast<double>(in.model.vocab) / plan.tp;
  PassPair pair;
  add_linear(in, plan, GemmType::bits16, rows, h, vocab, 1, 1 + in.model.mtp, pair);
  const double loss =
      memory_seconds(in.cluster.gpu, in.constants, in.stack.loss_bytes * rows * vocab * (1 + in.model.mtp));
  pair.forward.memory += 0.5 * loss;
  pair.backward.memory += 0.5 * loss;
  add_bytes(in, 8 * rows * h / plan.tp, 12 * rows * h / plan.tp, pair);
  if (plan.tp > 1) {
    // The hidden states are gathered, their gradient is reduced; the loss takes three small all-reduces.
    const double gather = collective_seconds(in, 2 * rows * h, plan.tp, 1);
    pair.forward.tp = gather + 3 * collective_seconds(in, 8 * rows, plan.tp, 1);
    pair.backward.tp = gather;
  }
  if (in.model.mtp > 0) {
    const PassPair layer = layer_cost(in, plan);
    add_scaled(pair, static_cast<double>(in.model.mtp), layer);
  }
  if (plan.forward_only) pair.backward = {};
  return pair;
}

}  // namespace megatron::autotune
