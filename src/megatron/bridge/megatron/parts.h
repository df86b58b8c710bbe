#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/schema/model_config.h"

namespace megatron {

// How many rows each part of key_parts(name) has; empty for tensors that are stored whole.
std::vector<int64_t> part_rows(std::string_view name, const ModelConfig& model);

// A ConfigError for what is stored otherwise there: gdn2 and gated delta products, whose parts have other
// names, and the one tensor whose numbers differ: with zero-centred norms Megatron-LM keeps the delta net's
// output norm less one, which is not exact in bf16.
void refuse_unlike_layouts(const ModelConfig& model, const std::string& origin);

}  // namespace megatron
