#pragma once

#include "megatron/models/elastic/elastic_spec.h"

namespace megatron {

// Of the settings' kind of budget.
BudgetTerms budget_terms(const Config& config);

}  // namespace megatron
