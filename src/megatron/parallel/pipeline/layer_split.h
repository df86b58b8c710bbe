#pragma once

#include <optional>

namespace megatron {

// How num_layers transformer layers are divided among pp × vpp stages where no layout is given.
struct LayerSplit {
  int num_layers = 0;
  int pp = 1;
  int vpp = 1;
  std::optional<int> first_stage_layers =
      {};  // uneven: what the first or last rank gets, the others share the rest
  std::optional<int> last_stage_layers = {};
  bool account_for_embedding = false;  // the embedding, or the loss, counts as one layer of its stage
  bool account_for_loss = false;
};

struct LayerRange {
  int first = 0;  // global, from 0
  int count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Throws a ConfigError where the layers cannot be divided.
LayerRange stage_layers(const LayerSplit& split, int pp_rank, int vp_stage = 0);

}  // namespace megatron
