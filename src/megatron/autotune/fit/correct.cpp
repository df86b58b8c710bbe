#include "megatron/autotune/fit/correct.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace megatron::autotune {
namespace {

// The factor of the layers with which a plan takes the measured time.
double factor_for(const CostInputs& in, const ParallelPlan& plan, double measured) {
  double low = 0.02, high = 50;
  const auto seconds = [&](double factor) {
    Calibration trial{in.constants, {{layer_shape(in.model, plan), factor}}};
    return predict({in.model, in.cluster, in.stack, in.constants, &trial}, plan).seconds;
  };
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(low * high);
    (seconds(middle) < measured ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

}  // namespace

Calibration corrected(const CostInputs& in, const std::vector<Candidate>& plans) {
  Calibration result{in.constants, {}};
  const auto inputs = [&](const Calibration& c) {
    return CostInputs{in.model, in.cluster, in.stack, c.constants, &c, in.ops};
  };
  double sum = 0;
  int count = 0;
  for (const Candidate& c : plans) {
    if (!c.measured) continue;
    sum += std::log(*c.measured / predict(inputs(result), c.plan).seconds);
    ++count;
  }
  if (count == 0) return in.measured != nullptr ? *in.measured : result;
  const double common = std::exp(sum / count);
  CostConstants& k = result.constants;
  for (double CostConstants::*rate : {&CostConstants::gemm16, &CostConstants::gemm8, &CostConstants::gemm4,
                                      &CostConstants::memory, &CostConstants::nvlink, &CostConstants::nic})
    k.*rate /= common;
  for (double CostConstants::*time :
       {&CostConstants::host_moe_ms, &CostConstants::host_forward_ms, &CostConstants::host_backward_ms,
        &CostConstants::kernel_us, &CostConstants::latency_us, &CostConstants::step_ms,
        &CostConstants::step_single_ms})
    k.*time *= common;
  std::map<LayerShape, std::vector<double>> logs;
  for (const Candidate& c : plans)
    if (c.measured)
      logs[layer_shape(in.model, c.plan)].push_back(
          std::log(factor_for(inputs(result), c.plan, *c.measured)));
  for (const auto& [shape, values] : logs) {
    double mean = 0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    result.layers.push_back({shape, std::exp(mean)});
  }
  std::sort(result.layers.begin(), result.layers.end(),
            [](const LayerFactor& a, const LayerFactor& b) { return a.shape < b.shape; });
  return result;
}

}  // namespace megatron::autotune
