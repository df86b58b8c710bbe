#pragma once

#include "megatron/datasets/images/image.h"

namespace megatron {

enum class Resample : uint8_t { nearest = 0, bilinear = 2, bicubic = 3 };  // by Pillow's numbers

// As torchvision resizes bytes, antialiased: columns first, then rows, each rounded to bytes, with weights of
// 16 bits.
Image resized(const Image& image, int64_t width, int64_t height, Resample resample);

// Its middle; what lies outside of the image is black.
Image cropped_to_center(const Image& image, int64_t width, int64_t height);

}  // namespace megatron
