#pragma once

#include "megatron/datasets/images/image_rows.h"

namespace megatron {

// The patches of an image that a sequence of `length` tokens has room for beside text.
PatchGrid mock_grid(const VisionConfig& vision, int64_t length);
int64_t patch_features(const VisionConfig& vision);

// Made-up rows: an image of noise, then text. Row i depends on `seed` and i alone.
SampleRows mock_image_rows(const VisionConfig& vision, int64_t vocabulary, int64_t length, int64_t seed);

}  // namespace megatron
