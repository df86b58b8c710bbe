#pragma once

#include <string>

#include "megatron/autotune/search/search.h"

namespace megatron::autotune {

// What tells one search from another: model, machine, batch, constants and what of a plan was given.
std::string search_fingerprint(const SearchRequest& request);

// The parts that a file holds of this search; none where it is of another or is not there. A last line that
// was cut off is left out.
SearchMemory read_search_state(const SearchRequest& request, const std::string& path);

// A line of such a file: which plans a part found. Their prices are made again when they are read.
std::string search_state_line(const std::string& name, const SearchPart& part);

}  // namespace megatron::autotune
