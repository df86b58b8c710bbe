#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "megatron/tokenizers/models/merges.h"
#include "megatron/tokenizers/models/vocabulary.h"

namespace megatron::tokenizers {

// A merge by the texts of its pieces.
struct MergeNames {
  std::string_view left, right;
};

// The two pieces of "a b"; none where it has not exactly one space.
std::optional<MergeNames> split_merge(std::string_view text);

// The table of merges in the order of their ranks; `continuing_prefix` is taken off a right piece. An Error
// names the first merge whose pieces, or what they become, the vocabulary lacks.
MergeTable make_merge_table(std::span<const MergeNames> merges, const Vocabulary& vocabulary,
                            std::string_view continuing_prefix);

}  // namespace megatron::tokenizers
