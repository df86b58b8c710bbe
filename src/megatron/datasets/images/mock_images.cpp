#include "megatron/datasets/images/mock_images.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/refuse.h"
#include "megatron/datasets/random/numpy_random.h"

namespace megatron {

PatchGrid mock_grid(const VisionConfig& vision, int64_t length) {
  if (!vision.is_qwen()) {
    const auto most = static_cast<int64_t>(std::sqrt(static_cast<double>(vision.most_patches())));
    const int64_t side = vision.vision_pixel_shuffle ? most / 2 * 2 : most;
    return {1, side, side};
  }
  constexpr int64_t kMostCells = 16;  // along a side: 448 pixels of the usual patches
  int64_t cells = 1;
  while (cells < kMostCells && 2 * (cells + 1) * (cells + 1) <= length) ++cells;
  return {1, cells * vision.vision_spatial_merge_size, cells * vision.vision_spatial_merge_size};
}

int64_t patch_features(const VisionConfig& vision) {
  const int64_t frames = vision.is_qwen() ? vision.vision_temporal_patch_size : 1;
  return vision.vision_in_channels * frames * vision.vision_patch_size * vision.vision_patch_size;
}

SampleRows mock_image_rows(const VisionConfig& vision, int64_t vocabulary, int64_t length, int64_t seed) {
  constexpr int64_t kRows = 10000;
  const PatchGrid grid = mock_grid(vision, length);
  const int64_t tokens = vision.image_tokens(grid.patches());
  require_input(tokens < length,
                "--mock-data: an image has {} tokens, and a sequence {}; give a longer --seq-length", tokens,
                length);
  const auto make = [vision, vocabulary, length, seed, grid, tokens](int64_t row) {
    RandomState random(static_cast<uint32_t>(seed * 100003 + row));
    ImageSample sample;
    sample.tokens.ids.assign(static_cast<size_t>(tokens), vision.image_token_id);
    // A few of the tokens alone, so that there is something to learn.
    const auto words = static_cast<uint64_t>(std::clamp<int64_t>(vocabulary / 4, 2, 1000));
    while (std::ssize(sample.tokens.ids) < length + 1) {
      const auto id = static_cast<int64_t>(random.interval(words - 1));
      sample.tokens.ids.push_back(vision.is_image_token(id) ? 0 : id);
    }
    sample.tokens.learned.assign(sample.tokens.ids.size(), 1);
    std::fill_n(sample.tokens.learned.begin(), tokens, uint8_t{0});
    sample.images.features = patch_features(vision);
    sample.images.grids = {grid};
    for (int64_t i = 0; i < grid.patches() * sample.images.features; ++i)
      sample.images.pixels.push_back(static_cast<float>(2 * random.uniform() - 1));
    return sample;
  };
  return {kRows, make};
}

}  // namespace megatron
