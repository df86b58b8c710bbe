#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace megatron {

struct HttpUrl {
  std::string host = "127.0.0.1", port = "80", path = "";

  // "http://host:port/path"; a ConfigError where it is something else, https too.
  static HttpUrl parse(std::string_view text);
  // "host:port", with brackets around the colons of an IPv6 address.
  std::string authority() const;
};

// Sends one request and reads its answer; returns the status. Parts of the body are given to `take` as they
// come, which says whether to go on. An Error where the server cannot be reached.
int http_request(const HttpUrl& url, const std::string& method, const std::string& body,
                 const std::string& api_key, const std::function<bool(std::string_view)>& take);

}  // namespace megatron
