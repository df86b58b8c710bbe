#pragma once

#include <array>
#include <memory>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/config/resolve/elastic_widths.h"

namespace megatron {

// What a sub-network counts, as a share of the whole model: a sum over the sets of axes, bit i standing for
// axis i, of the term times the axes' shares. It is one, for every tensor's size is a product of widths.
using BudgetTerms = std::array<double, size_t{1} << kElasticAxes>;

// The sub-networks of a model, and how they are trained.
struct ElasticSpec {
  ElasticConfig settings;
  std::array<std::vector<int64_t>, kElasticAxes> widths;  // descending, the whole model's first; 0: none
  std::vector<double> budgets, chances;                   // descending; how often each is drawn, in sum 1
  int64_t iterations = 1;                                 // of the run
  BudgetTerms terms{};

  int64_t choices() const;  // of all axes
  int64_t first_choice(size_t axis) const;
  bool varies(size_t axis) const { return widths[axis].size() > 1; }
};

// Null where the model has no sub-networks.
std::shared_ptr<const ElasticSpec> elastic_spec(const Config& config);

// How many numbers a rank sends to the next stage beside hidden states: ElasticSpec::choices(), or 0.
int64_t elastic_choices(const Config& config);

}  // namespace megatron
