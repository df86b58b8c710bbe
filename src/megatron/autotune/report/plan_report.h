#pragma once

#include <string>

#include "megatron/autotune/search/what_if.h"

namespace megatron::autotune {

// One plan in 80 columns: figures, where the time goes, memory by kind.
std::string prediction_text(const CostInputs& in, const ParallelPlan& plan);
Json prediction_json(const CostInputs& in, const ParallelPlan& plan);

// The same with what binds and which change would help.
std::string explain_text(const CostInputs& in, const ParallelPlan& plan);
Json explain_json(const CostInputs& in, const ParallelPlan& plan);

// The ten best plans, why the first wins, what was refused.
std::string search_text(const SearchRequest& request, const SearchResult& result);
Json search_json(const SearchRequest& request, const SearchResult& result);

}  // namespace megatron::autotune
