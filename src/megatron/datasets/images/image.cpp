#include "megatron/datasets/images/image.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "megatron/base/mapped_file.h"
#include "megatron/base/refuse.h"

namespace megatron {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// Binary PPM (P6) and PGM (P5) of one byte a sample.
Image decode_ppm(std::span<const std::byte> bytes, const std::string& origin) {
  const auto* data = reinterpret_cast<const char*>(bytes.data());
  size_t at = 2;
  const auto number = [&] {
    while (at < bytes.size() && (std::isspace(static_cast<unsigned char>(data[at])) || data[at] == '#')) {
      if (data[at] == '#')
        while (at < bytes.size() && data[at] != '\n') ++at;
      else
        ++at;
    }
    int64_t value = 0;
    const size_t begin = at;
    for (; at < bytes.size() && data[at] >= '0' && data[at] <= '9' && value < (1 << 24); ++at)
      value = 10 * value + (data[at] - '0');
    require_input(at > begin, "{}: its header has no number where one must be", origin);
    return value;
  };
  const int64_t width = number(), height = number(), most = number();
  require_input(most == 255, "{}: samples up to {}, expected 255; convert it to PNG", origin, most);
  ++at;
  const bool grey = data[1] == '5';
  Image image = blank_image(width, height, origin);
  const size_t pixels = static_cast<size_t>(width * height), wanted = pixels * (grey ? 1 : 3);
  require_input(at <= bytes.size() && bytes.size() - at >= wanted, "{}: it ends before its last pixel",
                origin);
  const auto* from = reinterpret_cast<const uint8_t*>(data) + at;
  if (!grey) {
    std::copy_n(from, wanted, image.rgb.begin());
    return image;
  }
  for (size_t i = 0; i < pixels; ++i)
    std::fill_n(image.rgb.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, from[i]);
  return image;
}

// Upright, where `orientation` says how the camera was held (TIFF 6.0, tag 274).
Image turned(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool swaps = orientation >= 5;
  const bool mirrors_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirrors_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image result{swaps ? image.height : image.width, swaps ? image.width : image.height, {}};
  result.rgb.resize(image.rgb.size());
  // Row and column of the result are those of the image, mirrored first and swapped then.
  for (int64_t y = 0; y < result.height; ++y)
    for (int64_t x = 0; x < result.width; ++x) {
      int64_t from_x = swaps ? y : x, from_y = swaps ? x : y;
      if (mirrors_x) from_x = image.width - 1 - from_x;
      if (mirrors_y) from_y = image.height - 1 - from_y;
      std::copy_n(image.row(from_y) + 3 * from_x, 3, result.row(y) + 3 * x);
    }
  return result;
}

}  // namespace

Image blank_image(int64_t width, int64_t height, const std::string& origin) {
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  require_input(width > 0 && height > 0, "{}: it has {} x {} pixels", origin, width, height);
  require_input(width <= kMostPixels / height, "{}: {} x {} pixels are more than {}; make it smaller", origin,
                width, height, kMostPixels);
  Image image{width, height, {}};
  image.rgb.resize(static_cast<size_t>(3 * width * height));
  return image;
}

int exif_orientation(std::span<const std::byte> tiff) {
  if (tiff.size() < 8) return 1;
  const bool little = begins_with(tiff, "II");
  if (!little && !begins_with(tiff, "MM")) return 1;
  const auto read = [&](size_t at, size_t size) -> uint32_t {
    if (at > tiff.size() || tiff.size() - at < size) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value |= std::to_integer<uint32_t>(tiff[at + i]) << (8 * (little ? i : size - 1 - i));
    return value;
  };
  const size_t directory = read(4, 4), entries = read(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    constexpr uint32_t kOrientation = 0x0112;
    if (read(entry, 2) == kOrientation) return static_cast<int>(read(entry + 8, 2));
  }
  return 1;
}

Image decode_image(std::span<const std::byte> bytes, const std::string& origin) {
  int orientation = 1;
  if (begins_with(bytes, "\x89PNG\r\n\x1a\n")) {
    Image image = decode_png(bytes, origin, orientation);
    return turned(std::move(image), orientation);
  }
  if (begins_with(bytes, "\xff\xd8\xff")) {
    Image image = decode_jpeg(bytes, origin, orientation);
    return turned(std::move(image), orientation);
  }
  if (begins_with(bytes, "P6") || begins_with(bytes, "P5")) return decode_ppm(bytes, origin);
  refuse("{}: neither PNG, JPEG nor binary PPM; convert it to one of these", origin);
}

Image read_image(const std::string& path) { return decode_image(MappedFile(path).bytes(), path); }

}  // namespace megatron
