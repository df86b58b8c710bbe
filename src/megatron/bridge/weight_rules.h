#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/model_config.h"
#include "megatron/nn/shard_spec.h"

namespace megatron {

// How one of our tensors is made of Hugging Face's. All are permutations of elements, so both ways are exact.
enum class WeightLayout : uint8_t {
  same,
  transposed,             // [in, out] instead of [out, in]
  qkv,                    // query, key and value projections → one, ordered by query group
  packed_qkv,             // the rows of all queries, then all keys, then all values, in one tensor
  packed_qkv_transposed,  // the same as columns
  gate_up,                // gate, then up
};

// A row of a family's table. `*` stands for one number, the same on both sides.
struct WeightRule {
  WeightLayout layout;
  std::string_view ours;
  std::vector<std::string_view> theirs;
};

// What a Hugging Face tensor holds of one of ours: `shard` has our tensor as the global and theirs (turned
// where transposed) as the local one. It is a source when weights come in and a target when they go out.
struct HfPart {
  std::string name;
  bool transposed = false;
  ShardSpec shard;
};

// The parts of our tensor `name`, from the first rule that fits; none where no rule does.
std::vector<HfPart> hf_parts(const std::vector<WeightRule>& rules, const ModelConfig& config,
                             std::string_view name, const Shape& global_shape);

}  // namespace megatron
