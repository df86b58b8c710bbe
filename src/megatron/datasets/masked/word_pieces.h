#pragma once

#include <string>

#include "megatron/datasets/masked/masking.h"

namespace megatron {

// A BERT vocabulary file, one piece a line, its special pieces found by name. `extra_ids` sentinels
// <extra_id_0>, … are added behind it where the file does not hold them, and [BOS] and [EOS] with them.
WordPieces read_word_pieces(const std::string& path, int64_t extra_ids = 0);

}  // namespace megatron
