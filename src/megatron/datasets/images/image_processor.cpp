#include "megatron/datasets/images/image_processor.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "megatron/base/refuse.h"
#include "megatron/datasets/images/tiles.h"

namespace megatron {
namespace {

constexpr std::array kClipMean{0.48145466, 0.4578275, 0.40821073},
    kClipDeviation{0.26862954, 0.26130258, 0.27577711}, kHalf{0.5, 0.5, 0.5};

const Json* find(const Json& config, std::string_view key) {
  const Json* value = config.is_object() ? config.find(key) : nullptr;
  return value && !value->is_null() ? value : nullptr;
}

// Reads a preprocessor_config.json: what it lacks is the fallback's.
struct Reader {
  const Json& config;
  const std::string& origin;

  bool flag(std::string_view key, bool fallback) const {
    const Json* value = find(config, key);
    if (!value) return fallback;
    require_input(value->is_bool(), "{}: {} is {}, expected true or false", origin, key, value->type_name());
    return value->as_bool();
  }
  int64_t integer(const Json& object, std::string_view key, int64_t fallback) const {
    const Json* value = find(object, key);
    if (!value) return fallback;
    require_input(value->is_int() && value->as_int() > 0, "{}: {} is not a positive number", origin, key);
    return value->as_int();
  }
  std::array<double, 3> colours(std::string_view key, const std::array<double, 3>& fallback) const {
    const Json* value = find(config, key);
    if (!value) return fallback;
    require_input(value->is_array() && value->size() == 3, "{}: {} has not three numbers", origin, key);
    std::array<double, 3> result{};
    for (size_t i = 0; i < 3; ++i) result[i] = (*value)[i].as_double();
    return result;
  }
};

int64_t rounded_to_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

// Qwen's size, also of --dynamic-resolution: sides are multiples of `factor`, their product between two
// bounds, their ratio kept.
std::array<int64_t, 2> qwen_size(int64_t width, int64_t height, int64_t factor, int64_t least, int64_t most,
                                 const std::string& origin) {
  require_input(std::max(width, height) <= 200 * std::min(width, height),
                "{}: {} x {} pixels are too long for their width (at most 200 times); crop it", origin, width,
                height);
  const auto f = static_cast<double>(factor), w = static_cast<double>(width), h = static_cast<double>(height);
  int64_t wide = rounded_to_even(w / f) * factor, high = rounded_to_even(h / f) * factor;
  if (high * wide > most) {
    const double beta = std::sqrt(h * w / static_cast<double>(most));
    high = std::max(factor, static_cast<int64_t>(std::floor(h / beta / f)) * factor);
    wide = std::max(factor, static_cast<int64_t>(std::floor(w / beta / f)) * factor);
  } else if (high * wide < least) {
    const double beta = std::sqrt(static_cast<double>(least) / (h * w));
    high = static_cast<int64_t>(std::ceil(h * beta / f)) * factor;
    wide = static_cast<int64_t>(std::ceil(w * beta / f)) * factor;
  }
  return {wide, high};
}

}  // namespace

void ImagePatches::add(const ImagePatches& more) {
  require(features == 0 || features == more.features || more.grids.empty(),
          "images: patches of {} and of {} numbers", features, more.features);
  if (features == 0) features = more.features;
  pixels.insert(pixels.end(), more.pixels.begin(), more.pixels.end());
  grids.insert(grids.end(), more.grids.begin(), more.grids.end());
}

ImageProcessor::ImageProcessor(const VisionConfig& vision, const Json& config, const std::string& origin)
    : vision_(vision) {
  const Reader read{config, origin};
  const bool siglip = vision.vision_tower == VisionTowerKind::siglip;
  require_input(!read.flag("do_pan_and_scan", false),
                "{}: do_pan_and_scan is true, but images are not cut into crops here; set it to false",
                origin);
  resizes_ = read.flag("do_resize", true);
  const int64_t kind =
      read.integer(config, "resample", static_cast<int64_t>(siglip ? Resample::bilinear : Resample::bicubic));
  require_input(kind == 2 || kind == 3, "{}: resample is {}, expected 2 (bilinear) or 3 (bicubic)", origin,
                kind);
  resample_ = static_cast<Resample>(kind);
  const Json none = Json::object();
  const Json* given_size = find(config, "size");
  const Json& size = given_size && given_size->is_object() ? *given_size : none;
  if (vision.is_qwen()) {
    min_pixels_ = read.integer(config, "min_pixels", read.integer(size, "shortest_edge", 56 * 56));
    max_pixels_ = read.integer(config, "max_pixels", read.integer(size, "longest_edge", 28 * 28 * 1280));
    const auto same = [&](std::string_view key, int64_t own) {
      require_input(read.integer(config, key, own) == own, "{}: {} is not the tower's {}", origin, key, own);
    };
    same("patch_size", vision.vision_patch_size);
    same("merge_size", vision.vision_spatial_merge_size);
    same("temporal_patch_size", vision.vision_temporal_patch_size);
  } else {
    const int64_t side = vision.vision_image_size;
    shortest_edge_ = siglip && !find(size, "shortest_edge") ? 0 : read.integer(size, "shortest_edge", side);
    if (find(size, "height") || shortest_edge_ == 0) {
      height_ = read.integer(size, "height", side);
      width_ = read.integer(size, "width", side);
    }
    crops_ = read.flag("do_center_crop", !siglip);
    // Megatron-LM's multimodal scripts squeeze images into the square, where no file says otherwise.
    if (!vision.language_model_type.empty() && !find(config, "size") && !find(config, "do_center_crop")) {
      width_ = height_ = side;
      crops_ = false;
    }
    const Json* given_crop = find(config, "crop_size");
    const Json& crop = given_crop && given_crop->is_object() ? *given_crop : none;
    crop_height_ = read.integer(crop, "height", side);
    crop_width_ = read.integer(crop, "width", side);
  }
  const bool normalises = read.flag("do_normalize", true);
  const Json* factor = find(config, "rescale_factor");
  const double scale = read.flag("do_rescale", true) ? 1 / (factor ? factor->as_double() : 1.0 / 255) : 1;
  const auto mean =
      normalises ? read.colours("image_mean", siglip ? kHalf : kClipMean) : std::array{0.0, 0.0, 0.0};
  const auto deviation =
      normalises ? read.colours("image_std", siglip ? kHalf : kClipDeviation) : std::array{1.0, 1.0, 1.0};
  for (size_t c = 0; c < 3; ++c) {
    mean_[c] = static_cast<float>(mean[c]) * static_cast<float>(scale);
    deviation_[c] = static_cast<float>(deviation[c]) * static_cast<float>(scale);
  }
}

ImageProcessor ImageProcessor::open(const VisionConfig& vision, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return {vision, Json::object(), "images"};
  std::string file = path;
  std::error_code absent;
  if (fs::is_directory(path, absent)) file = path + "/preprocessor_config.json";
  if (!fs::is_regular_file(file, absent)) return {vision, Json::object(), "images"};
  return {vision, Json::read(file), file};
}

std::array<int64_t, 2> ImageProcessor::size_of(int64_t width, int64_t height,
                                               const std::string& origin) const {
  if (!resizes_) return {width, height};
  if (vision_.is_qwen())
    return qwen_size(width, height, vision_.vision_patch_size * vision_.vision_spatial_merge_size,
                     min_pixels_, max_pixels_, origin);
  if (keeps_ratio()) {
    const int64_t patch = vision_.vision_patch_size, unit = patch * (vision_.vision_pixel_shuffle ? 2 : 1);
    return qwen_size(width, height, unit,
                     std::max(vision_.dynamic_resolution_min_patches * patch * patch, unit * unit),
                     std::max(vision_.most_patches() * patch * patch, unit * unit), origin);
  }
  if (width_ > 0) return {width_, height_};
  const int64_t longer = shortest_edge_ * std::max(width, height) / std::min(width, height);
  return width <= height ? std::array{shortest_edge_, longer} : std::array{longer, shortest_edge_};
}

ImagePatches ImageProcessor::operator()(const Image& image) const {
  const auto [width, height] = size_of(image.width, image.height, "image");
  Image ready = resized(image, width, height, resample_);
  if (keeps_ratio()) return patches_of(ready);
  if (crops_ && (ready.width != crop_width_ || ready.height != crop_height_))
    ready = cropped_to_center(ready, crop_width_, crop_height_);
  if (vision_.is_qwen()) return merged_patches_of(ready);
  require_input(ready.width == vision_.vision_image_size && ready.height == vision_.vision_image_size,
                "image processor: it makes images of {} x {} pixels, but the tower sees {}", ready.width,
                ready.height, vision_.vision_image_size);
  return patches_of(ready);
}

ImagePatches ImageProcessor::tiles(const Image& image, int64_t most) const {
  if (!vision_.use_tiling || vision_.vision_tower != VisionTowerKind::clip) return (*this)(image);
  ImagePatches all;
  for (const Image& tile : tiles_of(image, {.size = vision_.vision_image_size,
                                           .most = most,
                                           .thumbnail = vision_.use_thumbnail,
                                           .weighs_area = vision_.use_area_weighted_aspect_ratio,
                                           .resample = resample_}))
    all.add(patches_of(tile));
  return all;
}

// A patch in a row: colour by colour, row by row.
ImagePatches ImageProcessor::patches_of(const Image& image) const {
  const int64_t side = vision_.vision_patch_size, high = image.height / side, wide = image.width / side;
  ImagePatches result{.features = 3 * side * side, .pixels = {}, .grids = {{1, high, wide}}};
  result.pixels.reserve(static_cast<size_t>(high * wide * result.features));
  for (int64_t patch = 0; patch < high * wide; ++patch)
    for (size_t c = 0; c < 3; ++c)
      for (int64_t y = 0; y < side; ++y) {
        const uint8_t* from = image.row(patch / wide * side + y) + 3 * (patch % wide) * side;
        for (int64_t x = 0; x < side; ++x)
          result.pixels.push_back((static_cast<float>(from[3 * x + static_cast<int64_t>(c)]) - mean_[c]) /
                                  deviation_[c]);
      }
  return result;
}

// The patches of a block that is merged lie together, and one frame stands for all of a patch.
ImagePatches ImageProcessor::merged_patches_of(const Image& image) const {
  const ImagePatches plain = patches_of(image);
  const int64_t merge = vision_.vision_spatial_merge_size, frames = vision_.vision_temporal_patch_size,
                side = vision_.vision_patch_size, wide = plain.grids[0].columns, high = plain.grids[0].rows;
  ImagePatches result{.features = plain.features * frames, .pixels = {}, .grids = plain.grids};
  result.pixels.reserve(plain.pixels.size() * static_cast<size_t>(frames));
  for (int64_t block = 0; block < high * wide / (merge * merge); ++block)
    for (int64_t cell = 0; cell < merge * merge; ++cell) {
      const int64_t row = block / (wide / merge) * merge + cell / merge,
                    column = block % (wide / merge) * merge + cell % merge;
      for (int64_t c = 0; c < 3; ++c) {
        const auto begin = plain.pixels.begin() + (row * wide + column) * plain.features + c * side * side;
        for (int64_t frame = 0; frame < frames; ++frame)
          result.pixels.insert(result.pixels.end(), begin, begin + side * side);
      }
    }
  return result;
}

}  // namespace megatron
