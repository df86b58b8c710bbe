#pragma once

#include <span>
#include <string_view>

namespace megatron {

// A flag or key of Megatron-LM or Megatron Bridge that is no setting here: launch scripts that hold it keep
// working where it changes nothing, and are told what to do where it would.
struct UpstreamFlag {
  enum class Verdict { no_effect, refused };
  Verdict verdict;
  std::string_view key;    // "model.masked_softmax_fusion"; empty where there is only a flag
  std::string_view flags;  // separated by blanks; empty where there is only a key
  int values;              // words after the flag; -1: any number
  std::string_view text;   // why it changes nothing, or what to do instead
};

std::span<const UpstreamFlag> upstream_flags();

const UpstreamFlag* find_upstream_flag(std::string_view flag);
const UpstreamFlag* find_upstream_key(std::string_view key);  // "tensor_inspect.*" stands for a whole section

}  // namespace megatron
