#include "megatron/autotune/simulate/stage_layout.h"

#include <algorithm>
#include <limits>

namespace megatron::autotune {
namespace {

double pass_seconds(const PassPair& pair) {
  return std::max(pair.forward.gpu() + pair.backward.gpu(), pair.forward.host + pair.backward.host);
}

}  // namespace

std::vector<PassPair> layer_costs(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  std::vector<PassPair> result(static_cast<size_t>(m.layers));
  if (m.kinds.size() != result.size()) {
    std::fill(result.begin(), result.end(), layer_cost(in, plan));
    return result;
  }
  std::vector<std::pair<LayerType, PassPair>> known;
  for (size_t layer = 0; layer < result.size(); ++layer) {
    const LayerType kind = m.kinds[layer];
    auto found =
        std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == kind; });
    if (found == known.end()) found = known.insert(found, {kind, layer_cost_of(in, plan, kind)});
    result[layer] = found->second;
  }
  return result;
}

std::vector<int> best_layout(const LayoutProblem& p, int stages) {
  const int layers = static_cast<int>(p.seconds.size());
  if (stages < 1 || layers < stages) return {};
  std::vector<double> seconds(static_cast<size_t>(layers) + 1), bytes = seconds;
  for (size_t i = 0; i < p.seconds.size(); ++i) {
    seconds[i + 1] = seconds[i] + p.seconds[i];
    bytes[i + 1] = bytes[i] + (p.bytes.empty() ? 0 : p.bytes[i]);
  }
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto cost = [&](int stage, int from, int to) {
    const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
    const bool first = stage == 0, last = stage == stages - 1;
    if (p.limit > 0) {
      const double held = p.held.empty() ? 1 : p.held[static_cast<size_t>(stage)];
      const double used =
          held * (bytes[b] - bytes[a]) + (first ? p.first_bytes : 0) + (last ? p.last_bytes : 0);
      if (used > p.limit) return never;
    }
    return seconds[b] - seconds[a] + (first ? p.first_seconds : 0) + (last ? p.last_seconds : 0);
  };
  // slowest[s][l]: of the first s stages with l layers; from[s][l]: where the last of them begins.
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<double> slowest((static_cast<size_t>(stages) + 1) * width, never);
  std::vector<int> from(slowest.size(), -1);
  slowest[0] = 0;
  for (int stage = 0; stage < stages; ++stage)
    for (int to = stage + 1; to <= layers - (stages - stage - 1); ++to) {
      const size_t at = (static_cast<size_t>(stage) + 1) * width + static_cast<size_t>(to);
      for (int begin = stage; begin < to; ++begin) {
        const double before = slowest[static_cast<size_t>(stage) * width + static_cast<size_t>(begin)];
        if (before >= slowest[at]) continue;
        const double value = std::max(before, cost(stage, begin, to));
        if (value < slowest[at]) slowest[at] = value, from[at] = begin;
      }
    }
  size_t to = static_cast<size_t>(layers);
  if (slowest[static_cast<size_t>(stages) * width + to] == never) return {};
  std::vector<int> result(static_cast<size_t>(stages));
  for (int stage = stages; stage > 0; --stage) {
    const int begin = from[static_cast<size_t>(stage) * width + to];
    result[static_cast<size_t>(stage) - 1] = static_cast<int>(to) - begin;
    to = static_cast<size_t>(begin);
  }
  return result;
}

std::vector<int> best_stage_layers(const CostInputs& in, const ParallelPlan& plan) {
  if (plan.pp == 1 || plan.vpp > 1 || plan.schedule == Schedule::zb_v || in.model.kinds.empty()) return {};
  LayoutProblem problem;
  for (const PassPair& layer : layer_costs(in, plan)) problem.seconds.push_back(pass_seconds(layer));
  const StagePrices prices = stage_prices(in, plan);
  problem.first_seconds = pass_seconds(prices.embedding);
  problem.last_seconds = pass_seconds(prices.head);
  return best_layout(problem, plan.pp);
}

}  // namespace megatron::autotune
