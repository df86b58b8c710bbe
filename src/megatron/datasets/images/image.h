#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// Pixels of three colours, row by row from the top left.
struct Image {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;

  uint8_t* row(int64_t y) { return rgb.data() + y * width * 3; }
  const uint8_t* row(int64_t y) const { return rgb.data() + y * width * 3; }
};

// An image in PNG, JPEG or PPM, told by its first bytes, as the `load_image` of transformers gives it: turned
// upright by its EXIF orientation, grey and palettes as colours, without transparency. A ConfigError begins
// with `origin`; where the build lacks a format's library, it says what to install.
Image decode_image(std::span<const std::byte> bytes, const std::string& origin);
Image read_image(const std::string& path);

// One format each; `orientation` is what EXIF says, 1 where it says nothing.
Image decode_png(std::span<const std::byte> bytes, const std::string& origin, int& orientation);
Image decode_jpeg(std::span<const std::byte> bytes, const std::string& origin, int& orientation);

// A blank image of a size that a file claims; a ConfigError where nobody could mean it.
Image blank_image(int64_t width, int64_t height, const std::string& origin);
// The orientation in a block of EXIF, which begins with its TIFF header; 1 where there is none.
int exif_orientation(std::span<const std::byte> tiff);

}  // namespace megatron
