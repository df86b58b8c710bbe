#pragma once

#include <span>
#include <string>

#include "megatron/datasets/images/image_processor.h"
#include "megatron/models/vision_language.h"

namespace megatron {

// Images that prompts speak of, one after the other. As processors of Hugging Face leave them, in
// FILE.safetensors[:PREFIX]: `pixel_values`, patches in rows with `image_grid_thw` [images, 3] beside them,
// or [images, channels, height, width].
class ImageFile {
 public:
  ImageFile(const std::string& source, const VisionConfig& vision);
  ImageFile(const ImagePatches& images, const VisionConfig& vision);  // of picture files

  // The images that the image tokens among `ids` stand for, behind those of earlier calls.
  Images next(RankContext& ctx, std::span<const int64_t> ids, DType dtype);

 private:
  std::string source_;
  VisionConfig vision_;
  Tensor pixels_;  // rows of patches, fp32, on the host
  std::vector<PatchGrid> grids_;
  size_t image_ = 0;
  int64_t patch_ = 0;
};

}  // namespace megatron
