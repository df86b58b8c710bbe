#include "megatron/models/elastic/elastic_spec.h"

#include <algorithm>
#include <numeric>

#include "megatron/models/elastic/budget_terms.h"

namespace megatron {
namespace {

int64_t iterations_of(const TrainConfig& train) {
  if (train.train_iters > 0) return train.train_iters;
  return std::max<int64_t>(1, train.train_samples / std::max<int64_t>(1, train.global_batch_size));
}

void set_budgets(const ElasticConfig& config, ElasticSpec& spec) {
  std::vector<size_t> order(config.budget_list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return config.budget_list[a] > config.budget_list[b]; });
  double sum = 0;
  for (const size_t i : order) {
    spec.budgets.push_back(config.budget_list[i]);
    spec.chances.push_back(config.budget_probs.empty() ? 1 : config.budget_probs[i]);
    sum += spec.chances.back();
  }
  for (double& chance : spec.chances) chance /= sum;
}

}  // namespace

int64_t ElasticSpec::first_choice(size_t axis) const {
  int64_t before = 0;
  for (size_t i = 0; i < axis; ++i) before += std::ssize(widths[i]);
  return before;
}

int64_t ElasticSpec::choices() const { return first_choice(kElasticAxes); }

std::shared_ptr<const ElasticSpec> elastic_spec(const Config& config) {
  if (!config.elastic.flextron) return {};
  auto spec = std::make_shared<ElasticSpec>();
  spec->settings = config.elastic;
  const auto axes = elastic_sizes(config);
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    spec->widths[axis] = axes[axis].given;
    std::ranges::sort(spec->widths[axis], std::greater());
  }
  set_budgets(config.elastic, *spec);
  spec->iterations = iterations_of(config.train);
  spec->terms = budget_terms(config);
  return spec;
}

int64_t elastic_choices(const Config& config) {
  if (!config.elastic.flextron) return 0;
  int64_t count = 0;
  for (const ElasticSizes& axis : elastic_sizes(config)) count += std::ssize(axis.given);
  return count;
}

}  // namespace megatron
