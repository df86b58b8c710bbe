#pragma once

#include "megatron/base/json.h"
#include "megatron/server/service.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "support/scripted_backend.h"

namespace megatron {

inline const char* const kHermesTemplate =
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{# <tool_call> #}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor "
    "%}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

inline ServedModel test_model() {
  ServedModel model{
      .name = "test",
      .tokenizer = make_tokenizer("HuggingFaceTokenizer", MEGATRON_GOLDEN_DIR "/tokenizers/byte_bpe_qwen2"),
      .templates = {},
      .end_tokens = {}};
  model.templates.sources.emplace_back("default", kHermesTemplate);
  model.vocab_size = model.tokenizer.vocab_size();
  model.end_tokens = {model.vocab_size - 1};
  model.max_length = 2000;
  model.prepare();
  return model;
}

// A reply that keeps what it is told; what is posted runs when wait() takes it.
class KeptReply : public HttpReply {
 public:
  void post(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  // What is posted holds whoever answers, who holds the reply: it goes when nobody waits any more.
  void close() {
    std::vector<std::function<void()>> left;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(work_);
  }
  void send(HttpResponse response) override {
    status = response.status;
    body = response.body;
    headers = response.headers;
    done = true;
  }
  void begin(int code, std::string_view) override { status = code; }
  void write(std::string part) override { body += part; }
  void end() override { done = true; }
  void on_drop(std::function<void()> listener) override { drop_listener = std::move(listener); }

  // Runs what is posted until the answer is complete, or until `enough` says so.
  void wait(const std::function<bool()>& enough = {}) {
    while (!done && !(enough && enough())) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !work_.empty(); });
        if (work_.empty()) throw std::runtime_error("no answer came");
        next = std::move(work_.front());
        work_.erase(work_.begin());
      }
      next();
    }
  }

  int status = 0;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool done = false;
  std::function<void()> drop_listener;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> work_;
  bool closed_ = false;
};

// A service over a script, and the answers to bodies that are sent to it.
class Served {
 public:
  explicit Served(const std::string& script, ServiceOptions options = {},
                  std::chrono::microseconds per_step = {})
      : Served(script, test_model(), std::move(options), per_step) {}
  Served(const std::string& script, ServedModel model, ServiceOptions options,
         std::chrono::microseconds per_step)
      : backend(model.encode(script, false), model.end_tokens[0], model.vocab_size, per_step),
        service(std::move(model), backend, std::move(options)) {}

  // Whoever still answers does so by the service, which goes first.
  ~Served() {
    backend.stop();
    for (const auto& reply : replies_) reply->close();
  }

  std::shared_ptr<KeptReply> start(const std::string& method, const std::string& path,
                                   const std::string& body, const std::string& authorization = "") {
    auto reply = replies_.emplace_back(std::make_shared<KeptReply>());
    service.handle({method, path, authorization, body}, reply);
    return reply;
  }
  std::shared_ptr<KeptReply> send(const std::string& path, const std::string& body) {
    auto reply = start("POST", path, body);
    reply->wait();
    return reply;
  }
  Json ask(const std::string& path, const std::string& body) {
    const auto reply = send(path, body);
    if (reply->status != 200) throw std::runtime_error(reply->body);
    return Json::parse(reply->body);
  }
  // The documents of a stream; the last is followed by [DONE].
  std::vector<Json> stream(const std::string& path, const std::string& body) {
    const auto reply = send(path, body);
    std::vector<Json> documents;
    std::string_view rest = reply->body;
    while (rest.starts_with("data: ")) {
      const size_t end = rest.find("\n\n");
      const std::string_view text = rest.substr(6, end - 6);
      rest.remove_prefix(end + 2);
      if (text == "[DONE]") return rest.empty() ? documents : std::vector<Json>{};
      documents.push_back(Json::parse(text));
    }
    throw std::runtime_error("no stream: " + reply->body);
  }

  ScriptedBackend backend;
  Service service;

 private:
  std::vector<std::shared_ptr<KeptReply>> replies_;
};

}  // namespace megatron
