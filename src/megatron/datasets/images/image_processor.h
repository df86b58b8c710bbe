#pragma once

#include <array>

#include "megatron/base/json.h"
#include "megatron/config/schema/vision_config.h"
#include "megatron/datasets/images/resize.h"
#include "megatron/nn/batch.h"

namespace megatron {

// Images as a vision tower reads them: patches in rows, image by image.
struct ImagePatches {
  int64_t features = 0;       // of a patch
  std::vector<float> pixels;  // [patches, features]
  std::vector<PatchGrid> grids;

  void add(const ImagePatches& more);
};

// What Hugging Face's processors do to an image before its tower: resize, crop, normalise, cut into patches.
class ImageProcessor {
 public:
  // As a preprocessor_config.json says; a key that it lacks is the tower's usual. A ConfigError begins with
  // `origin`.
  ImageProcessor(const VisionConfig& vision, const Json& config, const std::string& origin);
  // By the file, or the one in the folder; "" or a folder without one: the tower's usual.
  static ImageProcessor open(const VisionConfig& vision, const std::string& path);

  ImagePatches operator()(const Image& image) const;
  // With --use-tiling the tiles of an image, at most so many and a thumbnail, each as an image of its own.
  ImagePatches tiles(const Image& image, int64_t most) const;
  // Width and height before it is cut into patches.
  std::array<int64_t, 2> size_of(int64_t width, int64_t height, const std::string& origin) const;

 private:
  ImagePatches patches_of(const Image& image) const;
  ImagePatches merged_patches_of(const Image& image) const;

  VisionConfig vision_;
  bool keeps_ratio() const {
    return vision_.dynamic_resolution && vision_.vision_tower == VisionTowerKind::clip;
  }

  bool resizes_ = true, crops_ = false;
  int64_t min_pixels_ = 0, max_pixels_ = 0;  // Qwen
  int64_t width_ = 0, height_ = 0;           // else; 0: by the shortest edge
  int64_t shortest_edge_ = 0;
  int64_t crop_width_ = 0, crop_height_ = 0;
  Resample resample_ = Resample::bicubic;
  std::array<float, 3> mean_{}, deviation_{};  // of bytes
};

}  // namespace megatron
