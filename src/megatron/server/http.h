#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

struct HttpRequest {
  std::string method;
  std::string path;           // decoded, without what stands behind '?'
  std::string authorization;  // the header's value
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// The answer to one request, whole or in parts. All that concerns one reply runs one behind the other: the
// handler, what is given to post(), and the listener of on_drop(). The other members are called from there
// alone.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // Runs `work` later; from any thread. What it throws becomes an answer of status 500.
  virtual void post(std::function<void()> work) = 0;
  virtual void send(HttpResponse response) = 0;
  // An answer whose parts are sent as they come, up to end().
  virtual void begin(int status, std::string_view type) = 0;
  virtual void write(std::string part) = 0;
  virtual void end() = 0;
  // Is told once where the client goes away, is too slow, or its time is up before the answer is complete.
  virtual void on_drop(std::function<void()> listener) = 0;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

}  // namespace megatron
