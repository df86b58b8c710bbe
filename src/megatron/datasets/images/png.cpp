#include <png.h>

#include <cstring>

#include "megatron/base/refuse.h"
#include "megatron/datasets/images/image.h"

namespace megatron {
namespace {

// What libpng reads from, and what it said when it gave up.
struct Source {
  std::span<const std::byte> bytes;
  size_t at = 0;
  std::string fault;
};

void read_bytes(png_structp png, png_bytep target, size_t size) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->bytes.size() - source->at < size) png_error(png, "it ends before its last pixel");
  std::memcpy(target, source->bytes.data() + source->at, size);
  source->at += size;
}

// libpng leaves by longjmp, which passes over destructors: between setjmp and here are none.
[[noreturn]] void keep_fault(png_structp png, png_const_charp message) {
  static_cast<Source*>(png_get_error_ptr(png))->fault = message;
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

// Any kind of PNG as three bytes a pixel.
void ask_for_rgb(png_structp png, png_infop info) {
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
}

}  // namespace

Image decode_png(std::span<const std::byte> bytes, const std::string& origin, int& orientation) {
  Source source{bytes};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, keep_fault, ignore_warning);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  require(info != nullptr, "{}: libpng has no memory", origin);
  Image image;
  std::vector<png_bytep> rows;
  png_bytep exif = nullptr;
  png_uint_32 exif_size = 0;
  std::string refused;
  if (setjmp(png_jmpbuf(png)) == 0) {
    png_set_read_fn(png, &source, read_bytes);
    png_read_info(png, info);
    if (png_get_eXIf_1(png, info, &exif_size, &exif) != 0)
      orientation = exif_orientation({reinterpret_cast<const std::byte*>(exif), exif_size});
    ask_for_rgb(png, info);
    try {
      image = blank_image(png_get_image_width(png, info), png_get_image_height(png, info), origin);
      for (int64_t y = 0; y < image.height; ++y) rows.push_back(image.row(y));
    } catch (const ConfigError& fault) {
      refused = fault.what();
    }
    if (refused.empty()) png_read_image(png, rows.data());
  }
  png_destroy_read_struct(&png, &info, nullptr);
  if (!refused.empty()) throw ConfigError(refused);
  require_input(source.fault.empty(), "{}: {}", origin, source.fault);
  return image;
}

}  // namespace megatron
