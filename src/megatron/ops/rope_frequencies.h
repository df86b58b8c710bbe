#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace megatron::ops {

enum class RopeScalingKind : uint8_t { None, Linear, Dynamic, Llama3, Yarn, LongRope };

// How a model stretches its positions beyond the length it was first trained on.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::None;
  double factor = 1;
  int64_t max_position = 0;                          // dynamic: the length up to which nothing changes
  int64_t original_max_position = 0;                 // llama3, yarn, longrope
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn; 0: absent
  std::optional<double> attention_factor;            // yarn, longrope: the amplitude itself
  std::vector<double> short_factor, long_factor;     // longrope
};

struct RopeFrequencies {
  std::vector<double> inverse;  // angle per position, one for each pair of channels
  double amplitude = 1;         // what cos and sin are multiplied by
};

// `width` channels of each head are turned (all, or a part of them). `length` is the longest sequence of the
// call, which dynamic and longrope look at.
RopeFrequencies rope_frequencies(int64_t width, double theta, const RopeScaling& scaling = {},
                                 int64_t length = 0);

// 0.1 · scale · ln(factor) + 1, for factor > 1: yarn's temperature; DeepSeek squares it into the softmax
// scale.
double yarn_mscale(double factor, double scale = 1);

}  // namespace megatron::ops
