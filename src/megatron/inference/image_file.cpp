#include "megatron/inference/image_file.h"

#include <algorithm>

#include "megatron/checkpoint/file_and_key.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {
namespace {

// [images, channels, height, width] as rows of one patch each, channel by channel.
Tensor patches_of(const Tensor& pixels, int64_t patch) {
  const int64_t images = pixels.size(0), channels = pixels.size(1), high = pixels.size(2) / patch,
                wide = pixels.size(3) / patch;
  Tensor rows = host_tensor({images * high * wide, channels * patch * patch}, DType::F32);
  copy_host(pixels.view({images, channels, high, patch, wide, patch})
                .transpose(3, 4)   // images, channels, high, wide, patch, patch
                .transpose(1, 2)   // images, high, channels, wide, …
                .transpose(2, 3),  // images, high, wide, channels, patch, patch
            rows.view({images, high, wide, channels, patch, patch}));
  return rows;
}

}  // namespace

ImageFile::ImageFile(const std::string& source, const VisionConfig& vision)
    : source_(source), vision_(vision) {
  const auto [path, prefix] = file_and_key(source);
  const SafetensorsFile file(path);
  const Tensor pixels = file.tensor(prefix + "pixel_values");
  if (pixels.dtype() != DType::F32)
    throw ConfigError(fmt::format("{}: pixel_values are {}, not fp32", source, pixels.dtype()));
  if (!vision.is_qwen()) {
    const bool fits = pixels.rank() == 4 && pixels.size(1) == vision.vision_in_channels &&
                      pixels.size(2) == vision.vision_image_size &&
                      pixels.size(3) == vision.vision_image_size;
    if (!fits)
      throw ConfigError(fmt::format("{}: pixel_values are {}, but the tower sees [images, {}, {}, {}]",
                                    source, pixels.shape(), vision.vision_in_channels,
                                    vision.vision_image_size, vision.vision_image_size));
    const int64_t side = vision.vision_image_size / vision.vision_patch_size;
    grids_.assign(static_cast<size_t>(pixels.size(0)), {1, side, side});
    pixels_ = patches_of(pixels, vision.vision_patch_size);
    return;
  }
  const Tensor grids = file.tensor(prefix + "image_grid_thw");
  if (grids.dtype() != DType::I64 || grids.rank() != 2 || grids.size(1) != 3)
    throw ConfigError(
        fmt::format("{}: image_grid_thw is {}, but it must be int64 [images, 3]", source, grids.shape()));
  int64_t patches = 0;
  for (int64_t i = 0; i < grids.size(0); ++i) {
    const int64_t* grid = grids.data<int64_t>() + 3 * i;
    grids_.push_back({grid[0], grid[1], grid[2]});
    patches += grids_.back().patches();
  }
  if (pixels.rank() != 2 || pixels.size(0) != patches)
    throw ConfigError(fmt::format("{}: pixel_values are {}, but image_grid_thw speaks of {} patches", source,
                                  pixels.shape(), patches));
  pixels_ = host_tensor(pixels.shape(), DType::F32);
  copy_host(pixels, pixels_);
}

ImageFile::ImageFile(const ImagePatches& images, const VisionConfig& vision)
    : source_("--images"), vision_(vision), grids_(images.grids) {
  const int64_t patches = images.features > 0 ? std::ssize(images.pixels) / images.features : 0;
  pixels_ = host_tensor({patches, images.features}, DType::F32);
  std::copy(images.pixels.begin(), images.pixels.end(), pixels_.data<float>());
}

Images ImageFile::next(RankContext& ctx, std::span<const int64_t> ids, DType dtype) {
  int64_t tokens =
      std::count_if(ids.begin(), ids.end(), [&](int64_t id) { return vision_.is_image_token(id); });
  Images images;
  const int64_t first = patch_;
  for (; tokens > 0; ++image_) {
    if (image_ == grids_.size())
      throw ConfigError(
          fmt::format("{}: the text speaks of more images than the {} there", source_, grids_.size()));
    images.grids.push_back(grids_[image_]);
    tokens -= vision_.image_tokens(grids_[image_].patches());
    patch_ += grids_[image_].patches();
  }
  const Tensor rows = pixels_.slice(0, first, patch_);
  const Tensor wide = ctx.from_host(rows.raw(), rows.shape(), DType::F32, MemoryTag::Activation);
  images.pixels = ctx.empty(rows.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, images.pixels});
  return images;
}

}  // namespace megatron
