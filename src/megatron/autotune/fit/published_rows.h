#pragma once

#include <memory>
#include <optional>

#include "megatron/autotune/fit/table.h"

namespace megatron::autotune {

// A row of published-performance.json with what its publisher's recipes say beyond it; none where it has no
// figure or no size of the groups.
std::optional<TableRow> published_row(const Json& row, std::shared_ptr<const ModelShape> model);

}  // namespace megatron::autotune
