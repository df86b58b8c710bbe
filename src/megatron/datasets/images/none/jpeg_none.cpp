#include "megatron/base/refuse.h"
#include "megatron/datasets/images/image.h"

namespace megatron {

Image decode_jpeg(std::span<const std::byte>, const std::string& origin, int&) {
  refuse("{}: this build cannot read JPEG; install libjpeg-dev and build again, or convert it to PPM",
         origin);
}

}  // namespace megatron
