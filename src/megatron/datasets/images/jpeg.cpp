#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

#include <cstring>

#include "megatron/base/refuse.h"
#include "megatron/datasets/images/image.h"

namespace megatron {
namespace {

// libjpeg leaves by longjmp, which passes over destructors: between setjmp and here are none.
struct Errors {
  jpeg_error_mgr manager;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX] = "";
};

void keep_fault(j_common_ptr decoder) {
  auto* errors = reinterpret_cast<Errors*>(decoder->err);
  decoder->err->format_message(decoder, errors->message);
  std::longjmp(errors->leave, 1);
}

// What is wrong with a picture that can still be shown is an error, too: half of it would be grey.
void treat_warning(j_common_ptr decoder, int level) {
  if (level < 0) keep_fault(decoder);
}

int orientation_of(jpeg_saved_marker_ptr markers) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (; markers; markers = markers->next)
    if (markers->data_length > kExif.size() && std::memcmp(markers->data, kExif.data(), kExif.size()) == 0)
      return exif_orientation({reinterpret_cast<const std::byte*>(markers->data) + kExif.size(),
                               markers->data_length - kExif.size()});
  return 1;
}

}  // namespace

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& origin, int& orientation) {
  jpeg_decompress_struct decoder{};
  Errors errors{};
  decoder.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = keep_fault;
  errors.manager.emit_message = treat_warning;
  Image image;
  std::string refused;
  if (setjmp(errors.leave) == 0) {
    jpeg_create_decompress(&decoder);
    jpeg_mem_src(&decoder, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_save_markers(&decoder, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&decoder, TRUE);
    orientation = orientation_of(decoder.marker_list);
    if (decoder.num_components == 4) {
      refused = fmt::format("{}: it has four colours (CMYK); convert it to RGB", origin);
    } else {
      decoder.out_color_space = JCS_RGB;
      jpeg_start_decompress(&decoder);
      try {
        image = blank_image(decoder.output_width, decoder.output_height, origin);
      } catch (const ConfigError& fault) {
        refused = fault.what();
      }
      while (refused.empty() && decoder.output_scanline < decoder.output_height) {
        JSAMPROW row = image.row(decoder.output_scanline);
        jpeg_read_scanlines(&decoder, &row, 1);
      }
      if (refused.empty()) jpeg_finish_decompress(&decoder);
    }
  }
  jpeg_destroy_decompress(&decoder);
  if (!refused.empty()) throw ConfigError(refused);
  require_input(errors.message[0] == '\0', "{}: {}", origin, errors.message);
  return image;
}

}  // namespace megatron
