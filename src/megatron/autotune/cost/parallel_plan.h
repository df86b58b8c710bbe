#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::autotune {

enum class Precision { bf16, fp16, fp8, mxfp8, nvfp4 };
// half_gemms: every second GEMM's output and all elementwise ones are made again. selective: the plan's
// modules.
enum class Recompute { none, core_attn, moe, half_gemms, selective, full };
// How context-parallel ranks share keys and values: around a ring, gathered, or by exchanging heads
// (Ulysses).
enum class ContextExchange { ring, all_gather, all_to_all };
// Order of passes. 1F1B interleaves where there are several chunks; the others fill bubbles with weight
// gradients.
enum class Schedule { one_f_one_b, zb_h1, zb_v };

// Modules that selective recompute makes again, as bits of ParallelPlan::modules.
enum RecomputeModule : uint8_t {
  recompute_layernorm = 1,
  recompute_mlp_act = 2,
  recompute_mlp = 4,
  recompute_moe_act = 8,
  recompute_moe = 16,
  recompute_shared_experts = 32,
  recompute_mla_up_proj = 64,
};
struct NamedModule {
  RecomputeModule module;
  std::string_view name;  // as recompute_modules takes it
};
constexpr NamedModule kRecomputeModules[] = {
    {recompute_layernorm, "layernorm"},
    {recompute_mlp_act, "mlp_act"},
    {recompute_mlp, "mlp"},
    {recompute_moe_act, "moe_act"},
    {recompute_moe, "moe"},
    {recompute_shared_experts, "shared_experts"},
    {recompute_mla_up_proj, "mla_up_proj"},
};

// How one model is trained on so many GPUs.
struct ParallelPlan {
  int gpus = 1, tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1, etp = 1;
  int64_t mbs = 1, gbs = 1, seq = 4096;
  int shards = 0;  // ZeRO 3: ranks that share weights, gradients and states; 0: ZeRO 1 over all of DP x CP
  bool distributed_optimizer = true;
  Precision precision = Precision::bf16;
  Recompute recompute = Recompute::none;
  double recompute_share = 1;  // of the layers
  bool sequence_parallel = true, tp_overlap = false, dp_overlap = true, ep_overlap = false;
  bool deduplicating_dispatcher = false;  // a token crosses to a node once, however many experts it has there
  bool cuda_graphs = false;
  bool lora = false;            // weights are frozen but for small adapters
  double expert_imbalance = 1;  // rows of the fullest expert rank / mean
  int last_stage_layers = 0;    // 0: even; else layers on the last stage
  ContextExchange cp_exchange = ContextExchange::ring;
  Schedule schedule = Schedule::one_f_one_b;
  uint8_t modules = 0;                      // of RecomputeModule, for Recompute::selective
  double offload_share = 0;                 // of the layers: their activations wait in host memory
  bool shard_grads = false;                 // ZeRO 2: gradients are split beside the states
  bool forward_only = false;                // log-probabilities, prefill: no backward pass, no update
  int tp_spares = 0, reduced_replicas = 0;  // nonuniform TP: replicas that lack so many tensor ranks each
  int64_t packed = 0;                       // mean tokens of the samples that share a row; 0: one a row
  double useful = 1;                        // share of a row's tokens that are not padding

  int64_t context() const { return packed > 0 ? packed : seq; }  // tokens that attend to each other
  int dp() const { return replicas(int64_t{tp} * pp * cp); }
  int edp() const { return replicas(int64_t{etp} * pp * ep); }
  int64_t microbatches() const { return std::max<int64_t>(1, gbs / (mbs * dp())); }
  bool unequal() const { return tp_spares > 0 && reduced_replicas > 0; }
  bool fp8() const { return precision >= Precision::fp8; }
  bool recomputes(RecomputeModule module) const {
    return recompute == Recompute::selective && (modules & module) != 0;
  }

 private:
  int replicas(int64_t ranks) const {
    return static_cast<int>(std::max<int64_t>(1, gpus / std::max<int64_t>(1, ranks)));
  }
};

std::string_view precision_name(Precision precision);
std::string_view recompute_name(Recompute recompute);
std::string_view exchange_name(ContextExchange exchange);  // as cp_comm_type takes it
std::string_view schedule_name(Schedule schedule);         // as pipeline_schedule takes it
// The names of selected modules: {"layernorm", "mlp_act"}.
std::vector<std::string_view> module_names(uint8_t modules);

// "tp2 pp4 vp5 cp1 ep8 mbs1 zero1 core_attn": what tells plans of one model apart.
std::string plan_text(const ParallelPlan& plan);

}  // namespace megatron::autotune
