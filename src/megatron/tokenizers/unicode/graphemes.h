#pragma once

#include <cstddef>
#include <string_view>

namespace megatron::tokenizers {

// Bytes of the extended grapheme cluster (UAX #29, Unicode 17) at the front of non-empty text, which begins
// at a border of clusters.
size_t grapheme_length(std::string_view text);

}  // namespace megatron::tokenizers
