#include "megatron/datasets/compression/decompressor.h"

#include "megatron/base/error.h"

namespace megatron {

std::string decompress_whole(Decompressor& decoder, std::span<const std::byte> in, size_t size,
                             const std::string& origin) {
  std::string result;
  // Memory grows with what the data really gives, whatever size it claims.
  constexpr size_t kStep = size_t{1} << 20;
  while (result.size() < size) {
    const size_t before = result.size();
    result.resize(std::min(size, before + kStep));
    std::span<std::byte> out = std::as_writable_bytes(std::span(result)).subspan(before);
    const size_t room = out.size(), left = in.size();
    decoder.decode(in, out);
    result.resize(result.size() - out.size());
    require(out.size() < room || in.size() < left, "{}: {} bytes of compressed data give {}, expected {}",
            origin, left, result.size(), size);
  }
  return result;
}

}  // namespace megatron
