#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

#include "megatron/base/error.h"
#include "megatron/server/http_client.h"
#include "megatron/server/http_server.h"
#include "unit/server/served.h"

namespace megatron {
namespace {

// Until it holds, or for a minute, so that a busy machine makes nothing fail.
void await(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

int connect_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

// A server on a free port of loopback.
class Listening {
 public:
  explicit Listening(const std::string& script, HttpOptions options = {}, ServiceOptions service = {},
                     std::chrono::microseconds per_step = {})
      : served_(std::make_unique<Served>(script, std::move(service), per_step)) {
    options.port = 0;
    http_.emplace(options, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      served_->service.handle(std::move(request), std::move(reply));
    });
  }
  ~Listening() {
    http_->drain(60);
    await([&] { return served_->backend.stats().running == 0; });
    http_.reset();
  }
  HttpServer& http() { return *http_; }
  Served& served() { return *served_; }

  std::pair<int, std::string> request(const std::string& method, const std::string& path,
                                      const std::string& body) {
    std::string answer;
    const int status = http_request({"127.0.0.1", std::to_string(http_->port()), path}, method, body, "",
                                    [&](std::string_view part) {
                                      answer += part;
                                      return true;
                                    });
    return {status, answer};
  }

  int connect() const { return connect_to(http_->port()); }
  // Sends bytes as they are; returns all that comes back until the server closes, or the first part alone.
  std::string raw(const std::string& bytes, bool all = true) const {
    const int socket = connect();
    EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::string answer;
    char buffer[4096];
    do {
      const ssize_t got = ::recv(socket, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      answer.append(buffer, static_cast<size_t>(got));
    } while (all);
    ::close(socket);
    return answer;
  }

 private:
  std::unique_ptr<Served> served_;
  std::optional<HttpServer> http_;
};

std::string post(const std::string& body, const std::string& headers = "") {
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", headers,
                     body.size(), body);
}

TEST(Http, AnswersAndStreams) {
  Listening server("Hello world.");
  EXPECT_EQ(server.request("GET", "/health", "").first, 200);
  const auto [status, body] = server.request("POST", "/v1/completions", R"({"prompt":"x","temperature":0})");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(Json::parse(body).at("choices")[0].at("text"), Json("Hello world."));
  const auto stream =
      server.request("POST", "/v1/completions", R"({"prompt":"x","temperature":0,"stream":true})");
  EXPECT_TRUE(stream.second.ends_with("data: [DONE]\n\n"));
}

TEST(Http, ConnectionsStayOpen) {
  Listening server("Hello.");
  const std::string one = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string last = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  const std::string answer = server.raw(one + one + last);
  size_t count = 0;
  for (size_t at = answer.find("200 OK"); at != std::string::npos; at = answer.find("200 OK", at + 1))
    ++count;
  EXPECT_EQ(count, 3) << answer;
  const std::string old = server.raw(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 43\r\n\r\n"
      R"({"prompt":"x","temperature":0,"stream":true})");
  EXPECT_EQ(old.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(
      server.raw("HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("Content-Length: 15"),
      std::string::npos);
}

TEST(Http, MalformedAndOversizeIsRefused) {
  Listening server("Hello.", {.max_header_bytes = 4096, .max_body_bytes = 1000});
  EXPECT_TRUE(server.raw("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(server.raw(post(std::string(2000, ' '))).starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(
      server.raw(post("{}", "X: " + std::string(9000, 'y') + "\r\n"), false).starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(server.raw(post("{\"prompt\": \"\xff\"}"), false).starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(server.raw(post("{"), false).starts_with("HTTP/1.1 400"));
  EXPECT_EQ(server.request("GET", "/health", "").first, 200);
}

// A client that sends all of its oversize body before it reads is told so too: the connection is not reset
// while bytes are under way.
TEST(Http, OversizeBodiesAreReadToTheEnd) {
  Listening server("Hello.", {.max_body_bytes = 1000, .linger_seconds = 60});
  const std::string bytes = post(std::string(8 << 20, ' '));  // more than the sockets hold
  for (int i = 0; i < 8; ++i) {
    const int socket = server.connect();
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t now = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<size_t>(now);
    }
    EXPECT_EQ(sent, bytes.size()) << std::strerror(errno);
    char buffer[4096];
    const ssize_t got = ::recv(socket, buffer, sizeof(buffer), 0);
    ASSERT_GT(got, 0) << std::strerror(errno);
    EXPECT_TRUE(std::string_view(buffer, static_cast<size_t>(got)).starts_with("HTTP/1.1 413"));
    ::close(socket);
  }
  await([&] { return server.http().open_connections() == 0; });
  EXPECT_EQ(server.http().open_connections(), 0);
}

// Who never stops sending is left after a while.
TEST(Http, OversizeBodiesWithoutEndAreLeft) {
  Listening server("Hello.", {.max_body_bytes = 1000, .linger_seconds = 0.1});
  const int socket = server.connect();
  const std::string bytes = post(std::string(2000, ' '));
  ASSERT_GT(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  const std::string more(1000, ' ');
  await([&] {
    static_cast<void>(::send(socket, more.data(), more.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    return server.http().open_connections() == 0;
  });
  EXPECT_EQ(server.http().open_connections(), 0);
  ::close(socket);
}

// Clients with a large body ask before they send it.
TEST(Http, BodiesAreAskedFor) {
  Listening server("Hello.", {.max_body_bytes = 1000});
  const std::string body = R"({"prompt":"x","temperature":0})";
  const std::string whole = post(body, "Expect: 100-continue\r\nConnection: close\r\n");
  const int socket = server.connect();
  const size_t head = whole.size() - body.size();
  ASSERT_EQ(::send(socket, whole.data(), head, MSG_NOSIGNAL), static_cast<ssize_t>(head));
  char buffer[4096];
  const ssize_t got = ::recv(socket, buffer, sizeof(buffer), 0);
  EXPECT_EQ(std::string_view(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))),
            "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_GT(::send(socket, body.data(), body.size(), MSG_NOSIGNAL), 0);
  std::string answer;
  for (ssize_t now; (now = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;)
    answer.append(buffer, static_cast<size_t>(now));
  ::close(socket);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  // What is too large is refused before it is sent.
  const std::string large = post(std::string(2000, ' '), "Expect: 100-continue\r\n");
  EXPECT_TRUE(server.raw(large.substr(0, large.size() - 2000), false).starts_with("HTTP/1.1 413"));
}

TEST(Http, PathsAreDecoded) {
  Listening server("Hello.");
  EXPECT_EQ(server.request("GET", "/v1/models/t%65st", "").first, 200);
  EXPECT_EQ(server.request("GET", "/v1%2Fmodels?limit=5", "").first, 200);
  EXPECT_EQ(server.request("GET", "/health%", "").first, 404);
  EXPECT_EQ(server.request("GET", "/health%zz", "").first, 404);
  const std::string refused =
      server.raw("DELETE /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 405")) << refused;
  EXPECT_NE(refused.find("Allow: GET, HEAD\r\n"), std::string::npos) << refused;
}

TEST(Http, LocalhostIsAnAddress) {
  Listening server("Hello.", {.host = "localhost"});
  EXPECT_EQ(server.request("GET", "/health", "").first, 200);
  EXPECT_THROW(Listening("Hello.", {.host = "localhos"}), ConfigError);
}

TEST(Http, Urls) {
  const auto parts = [](const char* text) {
    const HttpUrl url = HttpUrl::parse(text);
    return std::vector<std::string>{url.host, url.port, url.path};
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts("http://host"), (Parts{"host", "80", ""}));
  EXPECT_EQ(parts("http://127.0.0.1:8000/base/"), (Parts{"127.0.0.1", "8000", "/base"}));
  EXPECT_EQ(parts("http://[::1]:8000"), (Parts{"::1", "8000", ""}));
  EXPECT_EQ(parts("http://[::1]"), (Parts{"::1", "80", ""}));
  for (const char* wrong : {"https://host", "host:80", "http://", "http://:80", "http://host:"})
    EXPECT_THROW(parts(wrong), ConfigError) << wrong;
  for (const char* host : {"127.0.0.1:8000", "[::1]:8000"})
    EXPECT_EQ(HttpUrl::parse(std::string("http://") + host).authority(), host);
}

// Clients that go away are noticed while their answer is made, whole or streamed.
TEST(Http, DroppedClientsAreCancelled) {
  Listening server(std::string(1900, 'a'), {}, {}, std::chrono::milliseconds(5));
  for (const char* stream : {"false", "true"}) {
    const int64_t before = server.served().backend.cancelled();
    const int socket = server.connect();
    const std::string bytes = post(fmt::format(R"({{"prompt":"x","max_tokens":1500,"stream":{}}})", stream));
    ASSERT_GT(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    await([&] { return server.served().backend.stats().running > 0; });
    ::close(socket);
    await([&] { return server.served().backend.cancelled() > before; });
    EXPECT_EQ(server.served().backend.cancelled(), before + 1) << stream;
  }
}

// One thread may read a request before another is told of its bytes, which it does not find then.
TEST(Http, EveryClientThatDropsIsNoticed) {
  constexpr int kClients = 300;  // two files each, of the 1,024 that a process usually may have
  std::atomic<int> taken = 0, dropped = 0;
  HttpServer server({.port = 0, .threads = 16},
                    [&](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
                      reply->on_drop([&] { ++dropped; });
                      ++taken;
                    });
  std::vector<int> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(connect_to(server.port()));
    const std::string bytes = post("{}");
    EXPECT_GT(::send(clients.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  await([&] { return taken == kClients; });
  EXPECT_EQ(dropped, 0);
  for (const int client : clients) ::close(client);
  await([&] { return dropped == kClients; });
  EXPECT_EQ(dropped, kClients);
}

TEST(Http, AnswersThatTakeTooLongAreEnded) {
  Listening server(std::string(1900, 'a'), {.answer_seconds = 0.2}, {}, std::chrono::milliseconds(5));
  EXPECT_EQ(server.request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":1500})").first, 408);
  EXPECT_GE(server.served().backend.cancelled(), 1);
}

TEST(Http, DrainWaitsForAnswers) {
  Listening server("one two three four five six seven", {}, {}, std::chrono::milliseconds(20));
  std::pair<int, std::string> answer;
  std::thread client([&] {
    answer = server.request("POST", "/v1/completions", R"({"prompt":"x","temperature":0,"max_tokens":30})");
  });
  while (server.served().backend.stats().running == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  server.served().service.drain();
  server.http().drain(60);
  client.join();
  EXPECT_EQ(answer.first, 200);
  EXPECT_THROW(server.request("GET", "/health", ""), Error);
}

// Many clients at once, of which some misbehave: only answers of 2xx and 4xx, and nothing is left behind. Who
// is told that the server is busy asks again. MEGATRON_LOAD_REQUESTS says how many.
TEST(Http, Load) {
  const char* asked = std::getenv("MEGATRON_LOAD_REQUESTS");
  const int requests = asked ? std::atoi(asked) : 1024;
  constexpr int kClients = 300;  // two files each, of the 1,024 that a process usually may have
  Listening server("The quick brown fox jumps over the lazy dog.", {.max_body_bytes = 100000},
                   {.max_requests = 200}, std::chrono::microseconds(200));
  std::atomic<int> next = 0, proper = 0, good = 0, refused = 0, busy = 0, wrong = 0;
  const auto count = [&](int status) {
    (status == 200 ? good : status >= 400 && status < 500 ? refused : wrong) += 1;
  };
  const auto ask = [&](const std::function<int()>& request) {
    ++proper;
    int status = request();
    for (; status == 429; status = request()) {
      ++busy;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    count(status);
  };
  const auto client = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (true) {
      const int number = next++;
      if (number >= requests) return;
      const std::string stream = random() % 2 ? "true" : "false";
      const std::string body =
          fmt::format(R"({{"prompt":"x{}","max_tokens":20,"stream":{}}})", number, stream);
      switch (random() % 12) {
        case 0:
          count(server.request("POST", "/v1/completions", std::string(200000, 'x')).first);
          break;
        case 1:
          count(server.request("POST", "/v1/completions", "{\"prompt\":").first);
          break;
        case 2:
          count(server.request("POST", "/v1/completions", "{\"prompt\":\"\xC3\x28\"}").first);
          break;
        case 3: {  // goes away
          const int socket = server.connect();
          const std::string bytes = post(body);
          static_cast<void>(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL));
          if (random() % 2) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
          ::close(socket);
          break;
        }
        case 4:  // reads slowly
          ask([&] {
            return http_request({"127.0.0.1", std::to_string(server.http().port()), "/v1/completions"},
                                "POST", body, "", [](std::string_view) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                  return true;
                                });
          });
          break;
        default:
          ask([&] { return server.request("POST", "/v1/completions", body).first; });
      }
    }
  };
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < kClients; ++i) clients.emplace_back(client, i);
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(good, proper);
  EXPECT_GT(refused, 0);
  await([&] { return server.served().service.requests() == 0 && server.http().open_connections() == 0; });
  EXPECT_EQ(server.served().service.requests(), 0);
  EXPECT_EQ(server.http().open_connections(), 0);
  EXPECT_EQ(server.served().backend.stats().running, 0);
  fmt::print("{} answers, {} refused, {} busy\n", good.load(), refused.load(), busy.load());
}

}  // namespace
}  // namespace megatron
