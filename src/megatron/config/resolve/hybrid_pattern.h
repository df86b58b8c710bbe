#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A hybrid model's layers, one symbol each: M mamba, G gated delta net, * attention, + multi-latent
// attention, D sparse attention, - MLP, E experts; | cuts pipeline segments and / begins each prediction
// layer's own pattern.
struct HybridPattern {
  std::string layers;             // without the cuts
  std::vector<int64_t> segments;  // layers of the pieces between cuts
  std::string mtp_layers;         // pattern of one MTP layer; empty where there is none
  int64_t mtp_depths = 0;
};

// An Error says what cannot be read.
HybridPattern parse_hybrid_pattern(std::string_view text);

}  // namespace megatron
