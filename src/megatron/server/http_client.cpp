#include "megatron/server/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <limits>

#include "megatron/base/error.h"

namespace megatron {
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

int http_request(const HttpUrl& url, const std::string& method, const std::string& body,
                 const std::string& api_key, const std::function<bool(std::string_view)>& take) {
  try {
    boost::asio::io_context io;
    tcp::socket socket(io);
    boost::asio::connect(socket, tcp::resolver(io).resolve(url.host, url.port));
    http::request<http::string_body> request;
    request.method_string(method);
    request.target(url.path);
    request.set(http::field::host, url.authority());
    request.set(http::field::content_type, "application/json");
    if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
    request.body() = body;
    request.prepare_payload();
    http::write(socket, request);

    boost::beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(std::numeric_limits<uint64_t>::max());
    http::read_header(socket, buffer, parser);
    char bytes[16384];
    while (!parser.is_done()) {
      parser.get().body().data = bytes;
      parser.get().body().size = sizeof(bytes);
      boost::beast::error_code error;
      http::read_some(socket, buffer, parser, error);
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
      const size_t got = sizeof(bytes) - parser.get().body().size;
      if (got > 0 && !take({bytes, got})) break;
    }
    return static_cast<int>(parser.get().result_int());
  } catch (const boost::system::system_error& error) {
    throw Error(fmt::format("http://{}: {}", url.authority(), error.code().message()));
  }
}

}  // namespace megatron
