#include "megatron/autotune/cost/layer_ops.h"

#include "megatron/autotune/cost/kernel_cost.h"

namespace megatron::autotune {
namespace {

class OpList {
 public:
  OpList(const CostInputs& in, const ParallelPlan& plan) : in_(in), plan_(plan) {}

  // Forward, input gradient and weight gradient of a linear layer.
  void linear(const std::string& name, double rows, double width_in, double width_out, double groups = 1,
              bool half = false) {
    gemm(name, rows, width_out, width_in, groups, half);
    if (plan_.forward_only) return;
    gemm(name + " dgrad", rows, width_in, width_out, groups, half);
    gemm(name + " wgrad", width_in, width_out, rows, groups, half);
  }

  void bytes(const std::string& name, double amount) {
    if (amount <= 0) return;
    result.push_back({name, false, 0, amount, memory_seconds(in_.cluster.gpu, in_.constants, amount)});
  }

  void attention(const AttentionShape& shape) {
    const AttentionSeconds seconds =
        attention_seconds(in_.cluster.gpu, in_.constants, in_.stack.attention, shape, true);
    const double flops = 2 * shape.tokens * shape.context * shape.heads * (shape.qk_dim + shape.v_dim);
    const double touched = 2 * shape.tokens * shape.heads * 2 * (shape.qk_dim + shape.v_dim);
    result.push_back({"attention", false, flops, touched, seconds.forward});
    if (!plan_.forward_only)
      result.push_back({"attention backward", false, 2.5 * flops, 2 * touched, seconds.backward});
  }

  std::vector<OpPrice> result;

 private:
  void gemm(const std::string& name, double m, double n, double k, double groups, bool half) {
    if (m < 1 || n < 1 || k < 1) return;
    const GemmType type = half || plan_.precision < Precision::fp8 ? GemmType::bits16
                          : plan_.precision == Precision::nvfp4    ? GemmType::bits4
                                                                   : GemmType::bits8;
    const double width = type == GemmType::bits16 ? 2 : 1;
    result.push_back({name, true, 2 * m * n * k * groups, groups * (width * (m * k + k * n) + 2 * m * n),
                      gemm_seconds(in_.cluster.gpu, in_.constants, type, m, n, k, groups),
                      static_cast<int64_t>(m), static_cast<int64_t>(n), static_cast<int64_t>(k),
                      static_cast<int64_t>(groups)});
  }

  const CostInputs& in_;
  const ParallelPlan& plan_;
};

}  // namespace

std::vector<OpPrice> layer_ops(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const double rows = static_cast<double>(plan.mbs) * static_cast<double>(plan.seq) / plan.cp, t = plan.tp;
  const double h = static_cast<double>(m.hidden);
  OpList ops(in, plan);
  if (m.attention_share() > 0) {
    if (m.latent()) {
      if (m.q_lora > 0) ops.linear("q up", rows, static_cast<double>(m.q_lora), m.query_width() / t);
      ops.linear("kv up", rows, static_cast<double>(m.kv_lora), double(m.heads) * (m.nope + m.v_dim) / t);
    } else {
      ops.linear("qkv", rows, h, double(m.head_dim) * double(m.heads + 2 * m.kv_heads) / t);
    }
    ops.attention({rows, static_cast<double>(plan.context()) / (plan.cp > 1 ? 2 * plan.cp : 1),
                   m.mean_context(plan.context()), static_cast<double>(m.heads) / t,
                   m.latent() ? double(m.nope + m.rope) : double(m.head_dim),
                   m.latent() ? double(m.v_dim) : double(m.head_dim), m.latent(),
                   static_cast<double>(plan.mbs)});
    ops.linear("proj", rows, m.value_width() / t, h);
  }
  const double gates = m.gated ? 2 : 1;
  if (m.mlp_share() > 0) {
    ops.linear("fc1", rows, h, gates * static_cast<double>(m.ffn) / t);
    ops.linear("fc2", rows, static_cast<double>(m.ffn) / t, h);
    ops.bytes("activation", (m.gated ? 6 : 4) * rows * static_cast<double>(m.ffn) / t * in.stack.pointwise);
  }
  if (m.moe()) {
    const double experts = static_cast<double>(m.experts) / plan.ep;
    const double routed = rows / t * double(m.topk) * plan.etp * plan.expert_imbalance;
    const double f = static_cast<double>(m.moe_ffn) / plan.etp;
    ops.linear("expert fc1", routed / experts, h, gates * f, experts);
    ops.linear("expert fc2", routed / experts, f, h, experts);
    ops.bytes("permute", 8 * routed * h * in.stack.pointwise);
  }
  ops.bytes("norm and residual", 10 * rows * h / t * in.stack.pointwise);
  ops.linear("head", rows, h, static_cast<double>(m.vocab) / t, 1, true);
  return std::move(ops.result);
}

}  // namespace megatron::autotune
