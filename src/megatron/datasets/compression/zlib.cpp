#include <zlib.h>

#include <limits>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {
namespace {

constexpr int kGzipOrZlib = 15 + 32, kGzip = 15 + 16;

class GzipDecoder final : public Decompressor {
 public:
  explicit GzipDecoder(std::string origin) : origin_(std::move(origin)) {
    const int status = ::inflateInit2(&stream_, kGzipOrZlib);
    require(status == Z_OK, "{}: zlib cannot start ({})", origin_, status);
  }
  ~GzipDecoder() override { ::inflateEnd(&stream_); }

  bool decode(std::span<const std::byte>& in, std::span<std::byte>& out) override {
    if (ended_) {
      ::inflateReset(&stream_);
      ended_ = false;
    }
    constexpr size_t kMost = std::numeric_limits<uInt>::max();
    const size_t given = std::min(in.size(), kMost), room = std::min(out.size(), kMost);
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(room);
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    in = in.subspan(given - stream_.avail_in);
    out = out.subspan(room - stream_.avail_out);
    ended_ = status == Z_STREAM_END;
    require(status == Z_OK || status == Z_BUF_ERROR || ended_, "{}: malformed gzip data: {}", origin_,
            stream_.msg ? stream_.msg : "unknown");
    return !ended_;
  }

 private:
  std::string origin_;
  z_stream stream_{};
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> make_gzip_decompressor(const std::string& origin) {
  return std::make_unique<GzipDecoder>(origin);
}

std::string gzip_compress(std::span<const std::byte> in) {
  z_stream stream{};
  const int started =
      ::deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY);
  require(started == Z_OK, "zlib cannot start ({})", started);
  std::string out(::deflateBound(&stream, static_cast<uLong>(in.size())), '\0');
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  require(status == Z_STREAM_END, "zlib cannot compress {} bytes ({})", in.size(), status);
  return out;
}

}  // namespace megatron
