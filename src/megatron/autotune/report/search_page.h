#pragma once

#include "megatron/autotune/search/search.h"
#include "megatron/report/page.h"

namespace megatron::autotune {

// A search as one page: the best plans and why the first wins, front of time and memory, where the time of
// each plan goes, memory by kind below the limit, roofline of the first plan's kernels, its timeline, and
// predicted against measured where plans were run.
report::Page search_page(const SearchRequest& request, const SearchResult& result,
                         const std::string& recipe_file);

}  // namespace megatron::autotune
