#include "megatron/base/refuse.h"
#include "megatron/server/http_client.h"

namespace megatron {

HttpUrl HttpUrl::parse(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  require_input(text.starts_with(kScheme), "{}: only http://HOST:PORT is supported", text);
  std::string_view rest = text.substr(kScheme.size());
  HttpUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  rest = rest.substr(0, slash);
  // The colons of an IPv6 address stand in brackets.
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  const bool bracketed = bracket != std::string_view::npos;
  const size_t colon = rest.find(':', bracketed ? bracket : 0);
  url.host = bracketed ? rest.substr(1, bracket - 1) : rest.substr(0, std::min(colon, rest.size()));
  if (colon != std::string_view::npos) url.port = rest.substr(colon + 1);
  require_input(!url.host.empty() && !url.port.empty(), "{}: it names no host", text);
  return url;
}

std::string HttpUrl::authority() const {
  const bool colons = host.find(':') != std::string::npos;
  return (colons ? "[" + host + "]" : host) + ":" + port;
}

}  // namespace megatron
