#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/regex/char_set.h"

namespace megatron::tokenizers {

// One step of a compiled pattern.
struct RegexStep {
  enum Kind : uint8_t {
    match,      // the pattern, or the body of a look-around or atomic group, has matched
    character,  // one character of sets[a]
    repeat,     // greedy run of sets[a], from `min` to `max` characters
    repeat_lazy,
    repeat_own,  // possessive
    split,       // try step a, then step b
    jump,        // go to a
    look_ahead,  // body at the next step; go on at a where it matches
    not_ahead,
    look_behind,  // a character of sets[b] stands before; go on at a
    not_behind,
    atomic,  // body at the next step, matched once; go on at a
    text_begin,
    text_end,
    line_begin,
    line_end,
    word_border,
    no_word_border,
  };
  Kind kind;
  uint32_t a = 0, b = 0;
  uint32_t min = 0, max = std::numeric_limits<uint32_t>::max();
};

struct RegexProgram {
  std::vector<RegexStep> steps;
  std::vector<CharSet> sets;
  CharSet first;           // characters with which a match can begin
  bool any_first = false;  // it can begin with anything, or be empty
  CharSet words;           // for word borders; empty set where there are none
};

// Translates a pattern; an Error names what is not known.
RegexProgram compile_regex(std::string_view pattern);

}  // namespace megatron::tokenizers
