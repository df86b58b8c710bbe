#include <zstd.h>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {
namespace {

class ZstdDecoder final : public Decompressor {
 public:
  explicit ZstdDecoder(std::string origin) : origin_(std::move(origin)), stream_(::ZSTD_createDStream()) {
    require(stream_ != nullptr, "{}: Zstandard cannot start", origin_);
  }
  ~ZstdDecoder() override { ::ZSTD_freeDStream(stream_); }

  bool decode(std::span<const std::byte>& in, std::span<std::byte>& out) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t status = ::ZSTD_decompressStream(stream_, &output, &input);
    require(!::ZSTD_isError(status), "{}: malformed zstd data: {}", origin_, ::ZSTD_getErrorName(status));
    in = in.subspan(input.pos);
    out = out.subspan(output.pos);
    return status != 0;
  }

 private:
  std::string origin_;
  ZSTD_DStream* stream_;
};

}  // namespace

std::unique_ptr<Decompressor> make_zstd_decompressor(const std::string& origin) {
  return std::make_unique<ZstdDecoder>(origin);
}

std::string zstd_compress(std::span<const std::byte> in) {
  std::string out(::ZSTD_compressBound(in.size()), '\0');
  const size_t size = ::ZSTD_compress(out.data(), out.size(), in.data(), in.size(), 3);
  require(!::ZSTD_isError(size), "Zstandard cannot compress {} bytes: {}", in.size(),
          ::ZSTD_getErrorName(size));
  out.resize(size);
  return out;
}

}  // namespace megatron
