#pragma once

#include <functional>
#include <string_view>

#include "megatron/inference/constraint/grammar.h"

namespace megatron {

// How one character out of some code points is written: as UTF-8, or as JSON writes it within a string.
using WriteCharacter = std::function<Grammar::Part(const Grammar::Points&)>;

// The texts that a regular expression matches as a whole, each character written by `write`. With `search`
// other text may stand in front and behind where ^ and $ do not say otherwise, as JSON schema means patterns.
// Groups, classes, \d \w \s \p{…}, quantifiers and anchors at both ends are known; what is no regular
// language (look-around, back-references) or depends on context (\b) is a ConfigError that names it.
Grammar::Part regex_part(Grammar& grammar, std::string_view pattern, const WriteCharacter& write,
                         bool search);

}  // namespace megatron
