#pragma once

#include <cstddef>
#include <string_view>

namespace megatron::tokenizers {

// Bytes of the grapheme cluster at the front of non-empty text. Exact for clusters of up to five bytes, which
// is what Precompiled looks up; longer ones (flags, emoji sequences, Hangul) may be cut.
size_t grapheme_length(std::string_view text);

}  // namespace megatron::tokenizers
