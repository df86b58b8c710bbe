#include "megatron/base/refuse.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {

std::unique_ptr<Decompressor> make_xz_decompressor(const std::string& origin) {
  refuse("{}: this build cannot read xz; install liblzma-dev and build again", origin);
}

}  // namespace megatron
