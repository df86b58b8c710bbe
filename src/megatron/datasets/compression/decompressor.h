#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace megatron {

// Turns a compressed stream into plain bytes, piece by piece.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Reads from the front of `in` and writes to the front of `out`; both shrink by what was used. Returns
  // false behind the end of a stream, where another may follow. An Error says what is wrong with the data.
  virtual bool decode(std::span<const std::byte>& in, std::span<std::byte>& out) = 0;
};

// Each throws an Error that names the missing library where the build has none. `origin` begins messages.
std::unique_ptr<Decompressor> make_gzip_decompressor(const std::string& origin);
std::unique_ptr<Decompressor> make_zstd_decompressor(const std::string& origin);
std::unique_ptr<Decompressor> make_xz_decompressor(const std::string& origin);

// Whole blocks, as Parquet's pages are compressed. The result has `size` bytes or an Error is thrown.
std::string decompress_whole(Decompressor& decoder, std::span<const std::byte> in, size_t size,
                             const std::string& origin);
std::string gzip_compress(std::span<const std::byte> in);
std::string zstd_compress(std::span<const std::byte> in);

}  // namespace megatron
