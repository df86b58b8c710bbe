#include "megatron/base/refuse.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {

std::unique_ptr<Decompressor> make_gzip_decompressor(const std::string& origin) {
  refuse("{}: this build cannot read gzip; install zlib1g-dev and build again", origin);
}

std::string gzip_compress(std::span<const std::byte>) {
  fail("this build cannot write gzip; install zlib1g-dev and build again");
}

}  // namespace megatron
