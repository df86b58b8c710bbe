#pragma once

#include "megatron/models/elastic/elastic_spec.h"

namespace megatron {

// Returns what a budget of --budget-type counts.
BudgetTerms budget_terms(const Config& config);

}  // namespace megatron
