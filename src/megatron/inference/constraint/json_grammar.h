#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/inference/constraint/grammar.h"

namespace megatron {

// Bounds of a number, whole.
struct NumberRange {
  std::optional<int64_t> min, max;
  bool above_min = false, below_max = false;  // the bounds themselves are excluded
};

// The pieces that JSON texts are made of. Space between them is a blank, or a line break with its
// indentation: enough for every usual style, and no model can write space for ever.
class JsonGrammar {
 public:
  static constexpr int64_t kMaxInteger = 999'999'999'999'999'999;  // 18 digits, so that int64 holds it

  explicit JsonGrammar(Grammar& grammar) : grammar_(grammar) {}

  Grammar::Part space();
  Grammar::Part any_value();
  Grammar::Part any_object();
  Grammar::Part any_string();
  Grammar::Part number();
  Grammar::Part integer(const NumberRange& range);
  Grammar::Part number(const NumberRange& range);
  // A string of so many characters (max -1: any number).
  Grammar::Part string(int64_t min, int64_t max);
  // A string whose characters a regular expression matches somewhere.
  Grammar::Part string_matching(std::string_view pattern);
  // A string without escapes that is none of `names`.
  Grammar::Part string_other_than(const std::set<std::string>& names);

  struct Member {
    Grammar::Part part;
    bool required;
  };
  enum class Optional { skipped, last };  // a member that is left out, or nothing behind it
  // Members between brackets, with commas, one behind the other; `more` may follow any number of times.
  Grammar::Part bracketed(std::string_view open, const std::vector<Member>& members,
                          const std::optional<Grammar::Part>& more, std::string_view close,
                          Optional optional = Optional::skipped);
  // "key": value
  Grammar::Part member(Grammar::Part key, Grammar::Part value);

 private:
  Grammar::Part character();
  Grammar::Part escaped_character(const Grammar::Points& points);
  Grammar::Part digits(int64_t min, int64_t max);
  Grammar::Part between(std::string_view low, std::string_view high);
  Grammar::Part whole_between(int64_t low, int64_t high);
  Grammar::Part magnitude(int64_t low, bool above, int64_t high, bool below);
  Grammar::Part shared(int& rule, Grammar::Part (JsonGrammar::*make)());
  Grammar::Part make_space();
  Grammar::Part make_value();
  Grammar::Part make_object();
  Grammar::Part make_array();
  Grammar::Part make_string();
  Grammar::Part make_number();

  Grammar& grammar_;
  int space_ = -1, value_ = -1, object_ = -1, array_ = -1, string_ = -1, number_ = -1;
};

}  // namespace megatron
