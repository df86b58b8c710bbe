#pragma once

#include <span>
#include <string>

#include "megatron/models/vision_language.h"

namespace megatron {

// Images as processors of Hugging Face leave them, in FILE.safetensors[:PREFIX]: `pixel_values`, patches in
// rows with `image_grid_thw` [images, 3] beside them, or [images, channels, height, width].
class ImageFile {
 public:
  ImageFile(const std::string& source, const VisionConfig& vision);

  // The images that the image tokens among `ids` stand for, behind those of earlier calls.
  Images next(RankContext& ctx, std::span<const int64_t> ids, DType dtype);

 private:
  int64_t tokens_of(const PatchGrid& grid) const;

  std::string source_;
  VisionConfig vision_;
  Tensor pixels_;  // rows of patches, fp32, on the host
  std::vector<PatchGrid> grids_;
  size_t image_ = 0;
  int64_t patch_ = 0;
};

}  // namespace megatron
