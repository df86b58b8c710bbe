#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// Columns of SampleArgs::settings. A temperature of 0 takes the largest logit, the first among equals.
enum SampleSetting : int { kSampleTemperature, kSampleTopK, kSampleTopP, kSampleMinP, kSampleUniform };
inline constexpr int kSampleSettings = 5;
inline constexpr int64_t kMaxSampledTokens = int64_t{1} << 19;  // in a vocabulary

// tokens[r] (int64, [rows]) is the token that settings[r] (fp64, [rows, kSampleSettings], contiguous) draws
// from row r of logits [rows, n], as sample_token() of inference/sampling.h does: from softmax(logits /
// temperature), cut by min-p, top-k (0: all) and top-p (0 and 1: all), in the order of tokens. −1 where the
// largest logit is not finite. Rows have unit stride and at most kMaxSampledTokens of fp32, bf16 or fp16. A
// row's token depends on that row alone.
struct SampleArgs {
  Tensor logits, settings, tokens;
};

}  // namespace megatron
