#include "megatron/base/refuse.h"
#include "megatron/server/http_client.h"

namespace megatron {

int http_request(const HttpUrl&, const std::string&, const std::string&, const std::string&,
                 const std::function<bool(std::string_view)>&) {
  refuse("chat: this build has no HTTP client; install libboost-dev (Boost.Beast) and build again");
}

}  // namespace megatron
