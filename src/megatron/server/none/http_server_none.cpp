#include "megatron/base/refuse.h"
#include "megatron/server/http_server.h"

namespace megatron {

class HttpServerState {};

HttpServer::HttpServer(const HttpOptions&, HttpHandler) {
  refuse("serve: this build has no HTTP server; install libboost-dev (Boost.Beast) and build again");
}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return 0; }
int64_t HttpServer::open_connections() const { return 0; }
void HttpServer::drain(double) {}

}  // namespace megatron
