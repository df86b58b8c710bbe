#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace megatron::autotune {

enum class Precision { bf16, fp16, fp8, mxfp8, nvfp4 };
// half_gemms: every second GEMM's output and all elementwise ones are made again.
enum class Recompute { none, core_attn, moe, half_gemms, full };

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

  int dp() const { return replicas(int64_t{tp} * pp * cp); }
  int edp() const { return replicas(int64_t{etp} * pp * ep); }
  int64_t microbatches() const { return std::max<int64_t>(1, gbs / (mbs * dp())); }
  bool fp8() const { return precision >= Precision::fp8; }

 private:
  int replicas(int64_t ranks) const {
    return static_cast<int>(std::max<int64_t>(1, gpus / std::max<int64_t>(1, ranks)));
  }
};

std::string_view precision_name(Precision precision);
std::string_view recompute_name(Recompute recompute);

// "tp2 pp4 vp5 cp1 ep8 mbs1 zero1 core_attn": what tells plans of one model apart.
std::string plan_text(const ParallelPlan& plan);

}  // namespace megatron::autotune
