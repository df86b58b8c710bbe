#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// What a pipeline stage can hold.
enum class LayerKind : char { embedding = 'E', decoder = 't', mtp = 'm', loss = 'L' };

std::string_view layer_kind_name(LayerKind kind);  // "decoder"

using StageLayers = std::vector<LayerKind>;

// The stages written as "Et*3|(tt|)*29,m|L", in order: stage k lives on pipeline rank k mod pp as its chunk k
// div pp. Commas mean nothing; `(...)*n` and `x*n` repeat. A ConfigError says what cannot be read.
std::vector<StageLayers> parse_pipeline_layout(std::string_view text);

// What is wrong with the layout of a model; empty where nothing is.
std::string check_pipeline_layout(const std::vector<StageLayers>& stages, int64_t pipeline_size,
                                  int64_t num_layers, int64_t mtp_num_layers);

}  // namespace megatron
