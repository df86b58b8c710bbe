#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace megatron {

// Raw Snappy blocks, as Parquet has them. The result has `size` bytes, or an Error that begins with `origin`
// is thrown.
std::string snappy_decompress(std::span<const std::byte> in, size_t size, const std::string& origin);
std::string snappy_compress(std::span<const std::byte> in);

}  // namespace megatron
