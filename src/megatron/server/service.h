#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "megatron/server/answer_job.h"
#include "megatron/server/chat_completions.h"

namespace megatron {

struct ServiceOptions {
  std::string api_key = {};    // "": none is asked for
  int64_t max_requests = 512;  // at the engine, running and waiting; more are answered with 429
  ChatStyle style = {};
  std::string version = {};  // of the program
};

// The endpoints of an OpenAI-compatible server, apart from how requests come in. Threads may call it at once.
class Service {
 public:
  Service(ServedModel model, Backend& backend, ServiceOptions options);

  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply);
  // From now on new work is refused with 503.
  void drain() { draining_ = true; }
  // Requests that the engine has from here.
  int64_t requests() const { return shared_.requests; }

 private:
  void route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void require_key(const HttpRequest& request) const;
  HttpResponse health() const;
  Json models() const;
  Json tokenize(const std::string& body) const;
  Json detokenize(const std::string& body) const;

  ServedModel model_;
  Backend& backend_;
  ServiceOptions options_;
  Metrics metrics_;
  AnswerShared shared_;
  ChatPrompts prompts_;
  ConstraintCache constraints_;
  std::atomic<bool> draining_ = false;
};

// Whether two texts are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace megatron
