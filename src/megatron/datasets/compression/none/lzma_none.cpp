#include "megatron/base/error.h"
#include "megatron/datasets/compression/stream_decoder.h"

namespace megatron {

std::unique_ptr<StreamDecoder> make_xz_decoder(const std::string& origin) {
  fail("{}: this build cannot read xz; install liblzma-dev and build again", origin);
}

}  // namespace megatron
