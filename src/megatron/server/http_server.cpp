#include "megatron/server/http_server.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "megatron/base/refuse.h"
#include "megatron/server/api_error.h"

namespace megatron {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Clients write %2F for the slash in a model's name. What is no escape stays as it stands.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* first = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(first, first + 2, byte, 16).ptr == first + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

class HttpServerState {
 public:
  HttpServerState(HttpOptions options, HttpHandler handler)
      : options(std::move(options)), handler(std::move(handler)) {}

  void listen();
  void accept();
  void enter() { ++connections; }
  void leave();
  void answer_begins() { ++answers; }
  void answer_ends();

  HttpOptions options;
  HttpHandler handler;
  std::atomic<int64_t> connections = 0, answers = 0;
  std::atomic<bool> draining = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  asio::io_context io;  // behind what connections use: its end is theirs
  tcp::acceptor acceptor{asio::make_strand(io)};
  asio::steady_timer retry{io};  // of accepting
  int port = 0;                  // also of a server that listens no longer
};

namespace {

// One client: reads a request, hands it to the handler, writes what it is told, reads the next. Everything
// runs on the connection's strand.
class Connection : public HttpReply, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, HttpServerState& server);
  ~Connection() override;

  void start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->read(); });
  }

  void post(std::function<void()> work) override;
  void send(HttpResponse response) override;
  void begin(int status, std::string_view type) override;
  void write(std::string part) override;
  void end() override;
  void on_drop(std::function<void()> listener) override;

 private:
  void read();
  void on_header(beast::error_code error);
  void on_request(beast::error_code error);
  void dispatch();
  void watch();
  void guarded(const std::function<void()>& work);
  std::string head(int status, std::string_view type) const;
  void queue(std::string bytes);
  void flush();
  void finish_answer();
  void drop();
  void close();
  void linger();
  void discard();

  HttpServerState* server_;
  beast::tcp_stream stream_;
  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0;
  std::function<void()> drop_listener_;
  uint64_t exchange_ = 0;  // of requests on this connection
  bool answering_ = false, begun_ = false, ended_ = false, writing_ = false, closed_ = false;
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;
  bool unread_ = false;  // a refused request has bytes that nobody will read
};

}  // namespace

void HttpServerState::listen() {
  beast::error_code error;
  // The one name that every machine knows, asked of none.
  const auto address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  require_input(!error, "serve: --host {} is no address; give one like 127.0.0.1", options.host);
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1024, error);
  require_input(!error, "serve: cannot listen on {} port {}: {}; give another --port", options.host,
                options.port, error.message());
  port = acceptor.local_endpoint().port();
}

void HttpServerState::accept() {
  acceptor.async_accept(asio::make_strand(io), [this](beast::error_code error, tcp::socket socket) {
    if (draining || error == asio::error::operation_aborted) return;
    if (error) {  // too many open files, say: connections that close make room again
      retry.expires_after(std::chrono::milliseconds(50));
      return retry.async_wait([this](beast::error_code stopped) {
        if (!stopped && !draining) accept();
      });
    }
    if (connections < options.max_connections)
      std::make_shared<Connection>(std::move(socket), *this)->start();
    accept();
  });
}

void HttpServerState::leave() {
  const std::lock_guard lock(mutex);
  --connections;
  changed.notify_all();
}

void HttpServerState::answer_ends() {
  const std::lock_guard lock(mutex);
  --answers;
  changed.notify_all();
}

namespace {

Connection::Connection(tcp::socket socket, HttpServerState& server)
    : server_(&server), stream_(std::move(socket)), deadline_(stream_.get_executor()) {
  server_->enter();
  beast::error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
}

Connection::~Connection() {
  if (answering_) server_->answer_ends();
  server_->leave();
}

void Connection::read() {
  if (closed_) return;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(server_->options.max_body_bytes));
  stream_.expires_after(milliseconds(server_->options.receive_seconds));
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](beast::error_code error, size_t) { self->on_header(error); });
}

void Connection::on_header(beast::error_code error) {
  if (closed_) return;
  if (error) return on_request(error);
  const auto read_body = [this] {
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code failed, size_t) { self->on_request(failed); });
  };
  if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read_body();
  // Who asks first waits a second or so before it sends the body all the same.
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue),
                    [self = shared_from_this(), read_body](beast::error_code failed, size_t) {
                      if (self->closed_) return;
                      failed ? self->close() : read_body();
                    });
}

void Connection::on_request(beast::error_code error) {
  if (closed_) return;
  stream_.expires_never();
  answering_ = true;
  begun_ = ended_ = false;
  server_->answer_begins();
  ++exchange_;
  if (!error) return dispatch();

  keep_alive_ = false;
  unread_ = true;
  const auto refuse_with = [&](int status, const std::string& message) {
    send(error_response(ApiError(status, message)));
  };
  if (error == http::error::body_limit)
    return refuse_with(413, fmt::format("the body is larger than {} bytes", server_->options.max_body_bytes));
  if (error == http::error::header_limit)
    return refuse_with(
        431, fmt::format("the headers are larger than {} bytes", server_->options.max_header_bytes));
  if (error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message)
    return refuse_with(400, "the request is not HTTP: " + error.message());
  close();
}

void Connection::dispatch() {
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  keep_alive_ = message.keep_alive() && !server_->draining;
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == http::verb::head;
  const std::string_view target(message.target().data(), message.target().size());
  const auto authorization = message[http::field::authorization];
  HttpRequest request{.method = std::string(message.method_string().data(), message.method_string().size()),
                      .path = percent_decoded(target.substr(0, target.find('?'))),
                      .authorization = std::string(authorization.data(), authorization.size()),
                      .body = std::move(message.body())};
  if (head_only_) request.method = "GET";
  watch();
  deadline_.expires_after(milliseconds(server_->options.answer_seconds));
  deadline_.async_wait([self = shared_from_this(), exchange = exchange_](beast::error_code error) {
    if (error || exchange != self->exchange_ || self->ended_ || self->closed_) return;
    if (self->begun_) return self->drop();
    if (self->drop_listener_) std::exchange(self->drop_listener_, nullptr)();
    self->keep_alive_ = false;
    self->send(error_response(ApiError(408, "the answer took too long; ask for fewer tokens")));
  });
  guarded([&] { server_->handler(std::move(request), shared_from_this()); });
}

// A client that goes away shows as an end of its stream while nothing is read from it.
void Connection::watch() {
  stream_.socket().async_wait(
      tcp::socket::wait_read, [self = shared_from_this(), exchange = exchange_](beast::error_code error) {
        if (error || exchange != self->exchange_ || self->ended_ || self->closed_) return;
        char byte = 0;
        const auto got = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        // Another thread of the reactor may report the bytes of the request after they have been read.
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
        if (got <= 0) self->drop();
      });
}

void Connection::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    if (!begun_) return send(error_response(error));
    drop();
  } catch (const std::exception& error) {
    if (begun_) return drop();
    // Whoever works on the answer must not write into the next one's.
    if (drop_listener_) std::exchange(drop_listener_, nullptr)();
    keep_alive_ = false;
    send(error_response(ApiError(500, error.what())));
  }
}

void Connection::post(std::function<void()> work) {
  asio::post(stream_.get_executor(),
             [self = shared_from_this(), work = std::move(work)] { self->guarded(work); });
}

std::string Connection::head(int status, std::string_view type) const {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}", status,
                     std::string_view(reason.data(), reason.size()), type,
                     keep_alive_ ? "" : "Connection: close\r\n");
}

void Connection::send(HttpResponse response) {
  if (closed_ || begun_ || !answering_) return;
  begun_ = ended_ = true;
  std::string bytes = head(response.status, response.type);
  for (const auto& [name, value] : response.headers) bytes += fmt::format("{}: {}\r\n", name, value);
  bytes += fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
  if (!head_only_) bytes += response.body;
  queue(std::move(bytes));
}

void Connection::begin(int status, std::string_view type) {
  if (closed_ || begun_ || !answering_) return;
  begun_ = true;
  keep_alive_ = keep_alive_ && chunked_;
  queue(head(status, type) + "Cache-Control: no-store\r\n" +
        (chunked_ ? "Transfer-Encoding: chunked\r\n" : "") + "\r\n");
}

void Connection::write(std::string part) {
  if (closed_ || !begun_ || ended_ || part.empty()) return;
  queue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : std::move(part));
}

void Connection::end() {
  if (closed_ || !begun_ || ended_) return;
  ended_ = true;
  if (chunked_) queue("0\r\n\r\n");
  if (!closed_ && !writing_ && unsent_.empty()) finish_answer();
}

void Connection::on_drop(std::function<void()> listener) {
  if (closed_) return listener();
  drop_listener_ = std::move(listener);
}

void Connection::queue(std::string bytes) {
  unsent_bytes_ += bytes.size();
  unsent_.push_back(std::move(bytes));
  if (!ended_ && unsent_bytes_ > static_cast<size_t>(server_->options.max_unsent_bytes)) return drop();
  flush();
}

void Connection::flush() {
  if (writing_ || unsent_.empty() || closed_) return;
  writing_ = true;
  // What has gathered goes out at once.
  auto bytes = std::make_shared<std::string>(std::move(unsent_.front()));
  unsent_.pop_front();
  for (; !unsent_.empty(); unsent_.pop_front()) *bytes += unsent_.front();
  stream_.expires_after(milliseconds(server_->options.send_seconds));
  asio::async_write(stream_, asio::buffer(*bytes),
                    [self = shared_from_this(), bytes](beast::error_code error, size_t) {
                      self->writing_ = false;
                      self->unsent_bytes_ -= bytes->size();
                      if (self->closed_) return;
                      if (error) return self->drop();
                      self->stream_.expires_never();
                      if (!self->unsent_.empty()) return self->flush();
                      if (self->ended_) self->finish_answer();
                    });
}

void Connection::finish_answer() {
  drop_listener_ = nullptr;
  deadline_.cancel();
  if (answering_) {
    answering_ = false;
    server_->answer_ends();
  }
  if (unread_) return linger();
  if (!keep_alive_ || server_->draining) return close();
  beast::error_code ignored;
  stream_.socket().cancel(ignored);  // the watch of this exchange
  read();
}

// A socket that is closed while bytes wait in it resets the connection, and a client that is still sending
// its oversize body loses the answer that says so. So the answer is followed by an end of stream, and what
// comes is thrown away until the client has closed too, for linger_seconds at most.
void Connection::linger() {
  if (server_->draining) return close();
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(milliseconds(server_->options.linger_seconds));
  discard();
}

void Connection::discard() {
  if (closed_) return;
  buffer_.clear();
  constexpr size_t kAtOnce = 65536;
  stream_.async_read_some(buffer_.prepare(kAtOnce),
                          [self = shared_from_this()](beast::error_code error, size_t) {
                            error ? self->close() : self->discard();
                          });
}

void Connection::drop() {
  if (closed_) return;
  close();
  if (drop_listener_) std::exchange(drop_listener_, nullptr)();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  deadline_.cancel();
  if (answering_) {
    answering_ = false;
    server_->answer_ends();
  }
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
}

}  // namespace

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler)
    : state_(std::make_unique<HttpServerState>(options, std::move(handler))) {
  state_->listen();
  state_->accept();
  for (int i = 0; i < options.threads; ++i)
    state_->threads.emplace_back([state = state_.get()] { state->io.run(); });
}

HttpServer::~HttpServer() {
  drain(0);
  state_->io.stop();
  for (std::thread& thread : state_->threads) thread.join();
}

int HttpServer::port() const { return state_->port; }

int64_t HttpServer::open_connections() const { return state_->connections; }

void HttpServer::drain(double seconds) {
  if (!state_->draining.exchange(true))
    asio::post(state_->acceptor.get_executor(), [state = state_.get()] {
      beast::error_code ignored;
      state->acceptor.close(ignored);
    });
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, milliseconds(seconds), [&] { return state_->answers == 0; });
}

}  // namespace megatron
