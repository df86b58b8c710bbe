#include "megatron/server/serve.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "megatron/server/http_client.h"
#include "unit/inference/small_models.h"
#include "unit/server/served.h"

// The server over a real engine.
namespace megatron {
namespace {

// Serves a small model; `ask` talks to it and lets it end by setting the flag, or by returning.
void serve_small(ServeOptions options, const std::function<void(const HttpUrl&, std::atomic<bool>&)>& ask) {
  ServedModel model = test_model();
  Config config = testing::small_config(testing::kDense);
  config.model.vocab_size = model.vocab_size;
  config.model.max_position_embeddings = model.max_length = 20000;
  std::atomic<bool> over = false;
  std::thread client;
  options.http.port = 0;
  options.is_over = [&] { return over.load(); };
  options.on_ready = [&](int port) {
    client = std::thread([&, port] {
      ask({"127.0.0.1", std::to_string(port), "/v1/completions"}, over);
      over = true;
    });
  };
  testing::with_engine(config, DType::F32, {}, [&](Engine& engine, RankContext&, Model&) {
    serve(engine, std::move(model), options);
  });
  client.join();
}

struct Reply {
  int status = 0;
  std::string body;
};

// What came of a reply; status 0: the connection broke.
Reply ask(const HttpUrl& url, const std::string& body, const std::function<void()>& at_first = {}) try {
  Reply reply;
  reply.status = http_request(url, "POST", body, "", [&](std::string_view part) {
    if (at_first && reply.body.empty()) at_first();
    reply.body += part;
    return true;
  });
  return reply;
} catch (const Error& error) {
  return {0, error.what()};
}

TEST(Serve, Answers) {
  serve_small({}, [](const HttpUrl& url, std::atomic<bool>&) {
    const Reply reply = ask(url, R"({"prompt":"Hello","max_tokens":5,"ignore_eos":true})");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(Json::parse(reply.body).at("usage").at("completion_tokens"), Json(5));
  });
}

TEST(Serve, AnswersEndBeforeTheServer) {
  Reply reply;
  serve_small({.drain_seconds = 60}, [&](const HttpUrl& url, std::atomic<bool>& over) {
    reply = ask(url, R"({"prompt":"Hello","max_tokens":300,"ignore_eos":true,"stream":true})",
                [&] { over = true; });
  });
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n")) << reply.body.substr(reply.body.size() - 200);
}

// Answers for which there is no time are cut off with an error that says so; all of them, for the one thread
// that sends may have done so for the first before the server is destroyed.
TEST(Serve, CutOffAnswersAreTold) {
  constexpr size_t kClients = 64;
  const auto body = [](size_t client) {
    return fmt::format(R"({{"prompt":"Hello","max_tokens":19000,"ignore_eos":true,"stream":{}}})",
                       client % 2 == 0);
  };
  std::vector<Reply> replies(kClients);
  serve_small({.http = {.threads = 1}, .drain_seconds = 0}, [&](const HttpUrl& url, std::atomic<bool>& over) {
    std::vector<std::thread> clients;
    for (size_t i = 0; i < kClients; ++i) clients.emplace_back([&, i] { replies[i] = ask(url, body(i)); });
    HttpUrl metrics = url;
    metrics.path = "/metrics";
    const std::string all = fmt::format("vllm:num_requests_running{{model_name=\"test\"}} {}\n", kClients);
    for (std::string text; text.find(all) == std::string::npos;) {
      text.clear();
      http_request(metrics, "GET", "", "", [&](std::string_view part) { return text += part, true; });
    }
    over = true;
    for (std::thread& client : clients) client.join();
  });
  for (size_t i = 0; i < kClients; ++i) {
    EXPECT_TRUE(replies[i].status == 503 || (i % 2 == 0 && replies[i].status == 200)) << replies[i].status;
    EXPECT_NE(replies[i].body.find("the server is shutting down"), std::string::npos) << i;
  }
}

}  // namespace
}  // namespace megatron
