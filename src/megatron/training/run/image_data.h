#pragma once

#include "megatron/training/run/run_data.h"

namespace megatron {

// Whether a model with a vision tower learns from images, and not from .bin/.idx files of text alone.
bool reads_images(const Config& config);

// Text with images from JSON lines or tar archives, or made up.
RunData image_data(const Config& config, const Log& log);

}  // namespace megatron
