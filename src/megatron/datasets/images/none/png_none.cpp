#include "megatron/base/refuse.h"
#include "megatron/datasets/images/image.h"

namespace megatron {

Image decode_png(std::span<const std::byte>, const std::string& origin, int&) {
  refuse("{}: this build cannot read PNG; install libpng-dev and build again, or convert it to PPM", origin);
}

}  // namespace megatron
