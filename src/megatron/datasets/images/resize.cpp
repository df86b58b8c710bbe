#include "megatron/datasets/images/resize.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron {
namespace {

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

// Keys' cubic with a = -1/2.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// Which input samples make an output sample, and with which weights.
struct Taps {
  int64_t begin = 0;
  std::vector<int16_t> weights;
};

struct Filter {
  std::vector<Taps> taps;  // of every output sample
  int precision = 0;       // bits behind the binary point of weights
};

Filter make_filter(int64_t from, int64_t to, Resample resample) {
  const bool is_cubic = resample == Resample::bicubic;
  const double scale = static_cast<double>(from) / static_cast<double>(to), wide = std::max(scale, 1.0),
               support = (is_cubic ? 2 : 1) * wide;
  std::vector<std::vector<double>> weights;
  Filter filter;
  double largest = 0;
  for (int64_t i = 0; i < to; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto begin = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5)),
               end = std::min(from, static_cast<int64_t>(center + support + 0.5));
    std::vector<double>& own = weights.emplace_back();
    double sum = 0;
    for (int64_t k = begin; k < end; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) / wide;
      own.push_back(is_cubic ? cubic(x) : triangle(x));
      sum += own.back();
    }
    for (double& weight : own) weight = sum != 0 ? weight / sum : weight;
    for (double weight : own) largest = std::max(largest, weight);
    filter.taps.push_back({begin, {}});
  }
  // As many bits as leave the largest weight in 16.
  for (filter.precision = 0; filter.precision < 22; ++filter.precision)
    if (static_cast<int64_t>(0.5 + largest * static_cast<double>(int64_t{1} << (filter.precision + 1))) >=
        (1 << 15))
      break;
  const auto one = static_cast<double>(int64_t{1} << filter.precision);
  for (size_t i = 0; i < weights.size(); ++i)
    for (double weight : weights[i])
      filter.taps[i].weights.push_back(static_cast<int16_t>(weight * one + (weight < 0 ? -0.5 : 0.5)));
  return filter;
}

uint8_t rounded(int64_t sum, int precision) {
  return static_cast<uint8_t>(
      std::clamp<int64_t>((sum + (int64_t{1} << (precision - 1))) >> precision, 0, 255));
}

Image resized_columns(const Image& image, int64_t width, Resample resample) {
  const Filter filter = make_filter(image.width, width, resample);
  Image result{width, image.height, std::vector<uint8_t>(static_cast<size_t>(3 * width * image.height))};
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const Taps& taps = filter.taps[static_cast<size_t>(x)];
      for (int64_t c = 0; c < 3; ++c) {
        int64_t sum = 0;
        const uint8_t* from = image.row(y) + 3 * taps.begin + c;
        for (int16_t weight : taps.weights) sum += weight * *from, from += 3;
        result.row(y)[3 * x + c] = rounded(sum, filter.precision);
      }
    }
  return result;
}

Image resized_rows(const Image& image, int64_t height, Resample resample) {
  const Filter filter = make_filter(image.height, height, resample);
  Image result{image.width, height, std::vector<uint8_t>(static_cast<size_t>(3 * image.width * height))};
  std::vector<int64_t> sums(static_cast<size_t>(3 * image.width));
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 0);
    const Taps& taps = filter.taps[static_cast<size_t>(y)];
    for (size_t k = 0; k < taps.weights.size(); ++k) {
      const uint8_t* from = image.row(taps.begin + static_cast<int64_t>(k));
      for (size_t x = 0; x < sums.size(); ++x) sums[x] += int64_t{taps.weights[k]} * from[x];
    }
    for (size_t x = 0; x < sums.size(); ++x) result.row(y)[x] = rounded(sums[x], filter.precision);
  }
  return result;
}

}  // namespace

Image resized(const Image& image, int64_t width, int64_t height, Resample resample) {
  require(resample != Resample::nearest, "resize: images are resized by bilinear or bicubic filters");
  if (width == image.width && height == image.height) return image;
  const Image wide = width == image.width ? image : resized_columns(image, width, resample);
  return height == image.height ? wide : resized_rows(wide, height, resample);
}

Image cropped_to_center(const Image& image, int64_t width, int64_t height) {
  Image result{width, height, std::vector<uint8_t>(static_cast<size_t>(3 * width * height))};
  const int64_t left = (image.width - width) / 2, top = (image.height - height) / 2;
  for (int64_t y = std::max<int64_t>(0, -top); y < std::min(height, image.height - top); ++y)
    for (int64_t x = std::max<int64_t>(0, -left); x < std::min(width, image.width - left); ++x)
      std::copy_n(image.row(y + top) + 3 * (x + left), 3, result.row(y) + 3 * x);
  return result;
}

}  // namespace megatron
