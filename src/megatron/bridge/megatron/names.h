#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// Which of our tensors a key of a torch_dist checkpoint holds, or a part of.
struct MegatronKey {
  std::string state;              // of the optimizer: "master", "exp_avg", …; empty for a weight
  std::string before, after;      // our name; where layers are stacked, their number goes between
  bool stacked = false;           // the first axis is the layer
  std::optional<int64_t> expert;  // the key is one expert of a stack
  int part = 0;  // of those that follow each other in our rows: z, x, B, C, dt of Mamba's in_proj

  std::string name(int64_t layer) const { return stacked ? before + std::to_string(layer) + after : before; }
};

// None where the key is no tensor of the model: optimizer state in another form, for one.
std::optional<MegatronKey> megatron_key(std::string_view key);

// Our name of a parameter under the name that it has within Megatron's model, whichever layer spec made it.
std::string our_name(std::string_view theirs);

// A key under which our tensor is stored, as the Transformer Engine spec has it.
struct StoredKey {
  std::string key;
  bool stacked = false;  // with the layer as first axis, in place of a number in the key
  int64_t layer = 0;
};
// `stacked`: all layers of the decoder are alike; `holds`: whether the model has another of our tensors,
// since a norm is stored with the linear layer that follows it, if it has one.
StoredKey stored_key(std::string_view ours, bool stacked, const std::function<bool(std::string_view)>& holds);

// The parts under which a tensor is stored apart, in the order of our rows: "z", "x", …; none for most.
struct KeyParts {
  const std::string_view* names = nullptr;
  int count = 0;
};
KeyParts key_parts(std::string_view ours);

}  // namespace megatron
