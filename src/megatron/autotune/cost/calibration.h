#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "megatron/autotune/cost/constants.h"
#include "megatron/base/json.h"

namespace megatron::autotune {

// What decides the shapes of a layer's kernels: hidden, heads, ffn, experts, length, micro-batch, tensor,
// context and expert ranks, and whether GEMMs are in fp8.
using LayerShape = std::array<int64_t, 10>;

// Measured layer time / closed form: what tiles, algorithms and launches of just these sizes add.
struct LayerFactor {
  LayerShape shape{};
  double factor = 1;
};

// Constants of one GPU kind and software, and the layers that were measured with them, sorted by shape.
struct Calibration {
  CostConstants constants;
  std::vector<LayerFactor> layers;

  // 1 where no such layer was measured.
  double layer_factor(const LayerShape& shape) const;
};

// As a file holds it; reading names the key of a malformed value, after `origin`.
Json to_json(const Calibration& calibration);
Calibration parse_calibration(const Json& document, std::string_view origin);

// Calibrations that come with the program: "h100" (published figures) and "a100" (measured plans of small
// models).
const Calibration& shipped_calibration(std::string_view name);

}  // namespace megatron::autotune
