#include "megatron/autotune/search/what_if.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace megatron::autotune {
namespace {

class Neighbours {
 public:
  Neighbours(const CostInputs& in, const ParallelPlan& plan) : in_(in), plan_(plan) {}

  template <class T>
  void scale(std::string_view name, T ParallelPlan::*member) {
    for (const bool twice : {true, false}) {
      ParallelPlan other = plan_;
      if (!twice && other.*member % 2 != 0) continue;
      other.*member = static_cast<T>(twice ? other.*member * 2 : other.*member / 2);
      add(fmt::format("{} {}", name, other.*member), other);
    }
  }

  void add(std::string change, ParallelPlan other) {
    if (other.shards > 1) other.shards = other.pp == 1 ? other.dp() * other.cp : 0;
    other.tp_overlap = other.sequence_parallel = other.tp > 1;
    if (other.pp == 1) other.vpp = 1;
    if (!illegal(in_.model, in_.cluster, other).empty()) return;
    other.last_stage_layers = balanced_last_stage(in_, other);
    if (other.last_stage_layers < other.vpp || other.schedule == Schedule::zb_v) other.last_stage_layers = 0;
    if (other.vpp > 1 && (in_.model.layers / other.pp < other.vpp || other.microbatches() % other.pp != 0))
      return;
    result.push_back(
        {std::move(change), predict(in_, other).seconds, fits(in_, memory_use(in_, other)), false});
  }

  void machine(std::string change, const Cluster& cluster) {
    const CostInputs other{in_.model, cluster, in_.stack, in_.constants, in_.measured, in_.ops};
    result.push_back({std::move(change), predict(other, plan_).seconds, true, true});
  }

  std::vector<WhatIf> result;

 private:
  const CostInputs& in_;
  const ParallelPlan& plan_;
};

}  // namespace

std::vector<WhatIf> what_if(const CostInputs& in, const ParallelPlan& plan) {
  Neighbours neighbours(in, plan);
  neighbours.scale("tp", &ParallelPlan::tp);
  neighbours.scale("pp", &ParallelPlan::pp);
  neighbours.scale("cp", &ParallelPlan::cp);
  neighbours.scale("vpp", &ParallelPlan::vpp);
  neighbours.scale("mbs", &ParallelPlan::mbs);
  if (in.model.moe()) neighbours.scale("ep", &ParallelPlan::ep);
  ParallelPlan other = plan;
  other.recompute = plan.recompute == Recompute::none ? Recompute::full : Recompute::none;
  other.recompute_share = 1;
  neighbours.add(plan.recompute == Recompute::none ? "full recompute" : "no recompute", other);
  if (plan.cp > 1)
    for (const ContextExchange exchange :
         {ContextExchange::ring, ContextExchange::all_gather, ContextExchange::all_to_all}) {
      if (exchange == plan.cp_exchange) continue;
      other = plan;
      other.cp_exchange = exchange;
      neighbours.add(fmt::format("cp by {}", exchange_name(exchange)), other);
    }
  if (plan.pp > 1)
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zb_h1, Schedule::zb_v}) {
      if (schedule == plan.schedule) continue;
      other = plan;
      other.schedule = schedule;
      if (schedule != Schedule::one_f_one_b) other.vpp = 1;
      neighbours.add(schedule == Schedule::one_f_one_b ? "1f1b" : std::string(schedule_name(schedule)),
                     other);
    }
  if (!plan.cuda_graphs && !in.model.moe()) {
    other = plan;
    other.cuda_graphs = true;
    neighbours.add("CUDA graphs", other);
  }
  other = plan;
  other.precision = plan.fp8() ? Precision::bf16 : Precision::fp8;
  if (plan.fp8() || in.cluster.gpu.tflops8 > 0) neighbours.add(plan.fp8() ? "bf16" : "fp8", other);

  Cluster faster = in.cluster;
  faster.nic_gbs *= 2;
  neighbours.machine("twice the NIC", faster);
  faster = in.cluster;
  faster.gpu.nvlink_gbs *= 2;
  neighbours.machine("twice NVLink", faster);
  faster = in.cluster;
  faster.gpu.memory_tbs *= 2;
  neighbours.machine("twice the memory bandwidth", faster);
  faster = in.cluster;
  faster.host_speed *= 2;
  neighbours.machine("a host twice as fast", faster);
  std::sort(neighbours.result.begin(), neighbours.result.end(),
            [](const WhatIf& a, const WhatIf& b) { return a.seconds < b.seconds; });
  return std::move(neighbours.result);
}

std::vector<std::pair<std::string_view, double>> parts_of(const Breakdown& b) {
  return {{"GEMM", b.gemm},
          {"attention", b.attention},
          {"memory", b.memory},
          {"TP", b.tp},
          {"CP", b.cp},
          {"EP", b.ep},
          {"PP", b.pp},
          {"DP", b.dp},
          {"host", b.host},
          {"bubble", b.bubble},
          {"optimizer", b.optimizer},
          {"offload", b.offload},
          {"step", b.step}};
}

std::string why_faster(const Prediction& first, const Prediction& other) {
  auto mine = parts_of(first.breakdown);
  const auto theirs = parts_of(other.breakdown);
  for (size_t i = 0; i < mine.size(); ++i) mine[i].second -= theirs[i].second;
  std::sort(mine.begin(), mine.end(),
            [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  std::string text;
  for (size_t i = 0; i < 3; ++i) {
    if (std::abs(mine[i].second) < 1e-3 * other.seconds) break;
    text += fmt::format("{}{} {:+.0f} ms", text.empty() ? "" : ", ", mine[i].first, mine[i].second * 1e3);
  }
  return text.empty() ? "no part differs by a thousandth" : text;
}

}  // namespace megatron::autotune
