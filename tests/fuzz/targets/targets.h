#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron::testing {

// A reader of files from outside, given any bytes: it ends by itself, with a value or an Error. Anything
// else, another exception, a read out of bounds, undefined behaviour, is a fault.
struct FuzzTarget {
  std::string_view name;
  void (*read)(std::string_view bytes, const std::string& folder);  // may write files into the folder
  // Memory that reading may take, in all, for each byte of the input: nodes of a tree, messages; 0: any. What
  // an input announces counts for nothing.
  size_t bytes_per_byte = 0;
};
std::span<const FuzzTarget> fuzz_targets();

// Feeds one input; an Error is a good answer.
void feed(const FuzzTarget& target, std::string_view bytes, const std::string& folder);

}  // namespace megatron::testing
