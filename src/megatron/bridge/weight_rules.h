#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/shard_spec.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// How one of our tensors is made of Hugging Face's. All are permutations of elements, so both ways are exact.
enum class WeightLayout : uint8_t {
  same,
  transposed,                    // [in, out] instead of [out, in]
  qkv,                           // query, key and value projections → one, ordered by query group; queries
                                 // with their gates, head by head, where attention has a gate
  packed_qkv,                    // the rows of all queries, then all keys, then all values, in one tensor
  packed_qkv_transposed,         // the same as columns
  kv,                            // key and value projections → of each head the key, then the value
  gate_up,                       // gate, then up; the third name where the unit is not gated
  delta_in,                      // delta net: q, k, v, z and b, a of each key head → all q, k, v, z, b, a
  experts,                       // one tensor per expert → one with a leading dimension of experts
  experts_gate_up,               // the same of gate and up
  packed_experts,                // one tensor of all experts, [experts, in, out]
  packed_experts_gate_up,        // the same, gate and up in even and odd columns
  packed_expert_biases_gate_up,  // [experts, gate and up alternating]
};

// A row of a family's table. `*` stands for one number, the same on both sides, `#` for the expert.
struct WeightRule {
  WeightLayout layout;
  std::string ours;
  std::vector<std::string> theirs;
  bool where_held = false;  // counts only where the files have the tensors: a layout beside the usual one
};

// The begin or end of names as a family's rules have it, and as some files do instead.
struct Spelling {
  std::string_view usual, other;
};

// The names that a model's files have.
class TensorNames {
 public:
  using Holds = std::function<bool(std::string_view name)>;

  TensorNames() = default;  // nothing is known of the files
  TensorNames(Holds holds, std::vector<Spelling> spellings)
      : holds_(std::move(holds)), spellings_(std::move(spellings)) {}

  bool known() const { return holds_ != nullptr; }
  // A name of the rules as the files spell it; the same where they have none such.
  std::string spelled(std::string_view name) const;
  bool hold(std::string_view name) const { return known() && holds_(spelled(name)); }

 private:
  Holds holds_;
  std::vector<Spelling> spellings_;
};

// How a Hugging Face tensor is looked at, without copying.
enum class HfView : uint8_t {
  plain,
  transposed,    // its last two dimensions swapped
  one_expert,    // with a leading dimension of 1
  even_columns,  // every other element of its last dimension, from the first; then turned if it has rows
  odd_columns,
};
Tensor view_of(const Tensor& tensor, HfView view);
Shape stored_shape(const Shape& viewed, HfView view);  // of the tensor whose view this is

// What a Hugging Face tensor holds of one of ours: `shard` has our tensor as the global and the view of
// theirs as the local one. It is a source when weights come in and a target when they go out.
struct HfPart {
  std::string name;
  HfView view = HfView::plain;
  ShardSpec shard;
};

// The parts of our tensor `name`, from the first rule that fits; none where no rule does. A MTP layer
// without rules of its own stands, as most families store it, after the decoder's layers.
std::vector<HfPart> hf_parts(const std::vector<WeightRule>& rules, const ModelConfig& config,
                             std::string_view name, const Shape& global_shape, const TensorNames& files = {});

}  // namespace megatron
