#include "megatron/base/refuse.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {

std::unique_ptr<Decompressor> make_zstd_decompressor(const std::string& origin) {
  refuse("{}: this build cannot read zstd; install libzstd-dev and build again", origin);
}

std::string zstd_compress(std::span<const std::byte>) {
  fail("this build cannot write zstd; install libzstd-dev and build again");
}

}  // namespace megatron
