#include "megatron/models/elastic/elastic_draw.h"

#include <algorithm>
#include <cmath>

#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

constexpr uint64_t kStreamOfDraws = 0x656c'6173'7469'63;  // apart from those of weights and dropout
constexpr uint64_t kDrawsOfStep = uint64_t{1} << 20;

// In (0, 1).
double uniform(uint64_t seed, int64_t iteration, uint64_t number) {
  const Philox words =
      Philox::at({seed, kStreamOfDraws}, static_cast<uint64_t>(iteration) * kDrawsOfStep + number);
  return (static_cast<double>(words.word[0]) + 0.5) * 0x1p-32;
}

// A budget between two that were trained is between their inputs; one beyond them is the nearest.
std::vector<double> input_of(const std::vector<double>& budgets, double budget) {
  std::vector<double> input(budgets.size(), 0);
  for (size_t i = 0; i < budgets.size(); ++i) {
    const bool last = i + 1 == budgets.size();
    if (budget < budgets[i] && !last && budget > budgets[i + 1]) {
      input[i] = (budget - budgets[i + 1]) / (budgets[i] - budgets[i + 1]);
      input[i + 1] = 1 - input[i];
      return input;
    }
    if (budget >= budgets[i] || last) {
      input[i] = 1;
      return input;
    }
  }
  return input;
}

double drawn_budget(const ElasticSpec& spec, double u) {
  double sum = 0;
  for (size_t i = 0; i < spec.budgets.size(); ++i)
    if (u < (sum += spec.chances[i])) return spec.budgets[i];
  return spec.budgets.back();
}

}  // namespace

ElasticDraw draw_of_step(const ElasticSpec& spec, uint64_t seed, int64_t iteration) {
  const ElasticConfig& config = spec.settings;
  ElasticDraw draw;
  const bool original = uniform(seed, iteration, 0) < config.original_model_sample_prob;
  draw.budget = original ? 1 : drawn_budget(spec, uniform(seed, iteration, 1));
  draw.input = input_of(spec.budgets, draw.budget);
  draw.mixes = config.soft_mask && uniform(seed, iteration, 2) < config.hard_sample_th;
  for (int64_t i = 0; i < spec.choices(); ++i)
    draw.noise.push_back(-std::log(-std::log(uniform(seed, iteration, 3 + static_cast<uint64_t>(i)))));
  const auto step = static_cast<double>(std::min(iteration, spec.iterations - 1));
  const auto steps = static_cast<double>(std::max<int64_t>(1, spec.iterations - 1));
  draw.factor =
      config.linear_scaler_start + (config.linear_scaler_end - config.linear_scaler_start) * step / steps;
  draw.scale = 1 / (config.tau_init * std::pow(config.tau_decay, static_cast<double>(iteration)));
  return draw;
}

ElasticDraw draw_of_budget(const ElasticSpec& spec, double budget) {
  ElasticDraw draw;
  draw.budget = budget;
  draw.input = input_of(spec.budgets, budget);
  draw.noise.assign(static_cast<size_t>(spec.choices()), 0);
  return draw;
}

}  // namespace megatron
