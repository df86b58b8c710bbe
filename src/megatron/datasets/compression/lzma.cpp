#include <lzma.h>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"

namespace megatron {
namespace {

class XzDecoder final : public Decompressor {
 public:
  explicit XzDecoder(std::string origin) : origin_(std::move(origin)) { start(); }
  ~XzDecoder() override { ::lzma_end(&stream_); }

  bool decode(std::span<const std::byte>& in, std::span<std::byte>& out) override {
    if (ended_) start();
    stream_.next_in = reinterpret_cast<const uint8_t*>(in.data());
    stream_.avail_in = in.size();
    stream_.next_out = reinterpret_cast<uint8_t*>(out.data());
    stream_.avail_out = out.size();
    const lzma_ret status = ::lzma_code(&stream_, LZMA_RUN);
    in = in.last(stream_.avail_in);
    out = out.last(stream_.avail_out);
    ended_ = status == LZMA_STREAM_END;
    require(status == LZMA_OK || status == LZMA_BUF_ERROR || ended_, "{}: malformed xz data ({})", origin_,
            static_cast<int>(status));
    return !ended_;
  }

 private:
  void start() {
    constexpr uint64_t kMemory = uint64_t{1} << 30;  // the most that xz itself writes needs 65 MiB
    const lzma_ret status = ::lzma_stream_decoder(&stream_, kMemory, 0);
    require(status == LZMA_OK, "{}: liblzma cannot start ({})", origin_, static_cast<int>(status));
    ended_ = false;
  }

  std::string origin_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> make_xz_decompressor(const std::string& origin) {
  return std::make_unique<XzDecoder>(origin);
}

}  // namespace megatron
