#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "megatron/server/http.h"

namespace megatron {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: one that is free
  int threads = 4;
  int64_t max_connections = 2048;
  int64_t max_header_bytes = 64 << 10;
  int64_t max_body_bytes = 16 << 20;
  int64_t max_unsent_bytes = 4 << 20;  // of one answer; a client that reads slower is dropped
  double receive_seconds = 60;         // in which a request has to be there, and the next one to begin
  double send_seconds = 30;            // in which a client has to take what was written
  double answer_seconds = 600;         // in which an answer has to be complete
  double linger_seconds = 2;           // for which the rest of a refused request is read and thrown away
};

class HttpServerState;

// HTTP/1.1 on one address, with connections that stay open. Requests that are malformed or too large are
// answered here. Answers wait without a thread of their own, so clients cost memory alone. Nobody may hold a
// reply any more when the server is destroyed.
class HttpServer {
 public:
  // Listens and answers from now on. A ConfigError where the address is taken, or where this build has no
  // HTTP.
  HttpServer(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();

  int port() const;
  int64_t open_connections() const;
  // Takes no new connections and no further requests; waits until answers are complete, so long at most.
  void drain(double seconds);

 private:
  std::unique_ptr<HttpServerState> state_;
};

}  // namespace megatron
