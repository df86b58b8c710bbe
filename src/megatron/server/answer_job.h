#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/server/answer_text.h"
#include "megatron/server/backend.h"
#include "megatron/server/generation_fields.h"
#include "megatron/server/http.h"
#include "megatron/server/metrics.h"

namespace megatron {

// What is new of one answer.
struct AnswerPiece {
  std::vector<TokenChoice> prompt;  // log-probabilities of its prompt, once where asked for
  std::vector<TokenChoice> tokens;
  std::string text;
  std::string finish_reason;  // "stop" or "length" with the last piece, else ""
  Json stop;                  // the stop string or the number of the stop token that ended it
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  Json json() const;
};

// Gives answers the form of an endpoint's documents.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // Documents of a stream that a piece of answer `index` makes.
  virtual std::vector<Json> chunks(size_t index, const AnswerPiece& piece) = 0;
  // The same piece for a document of its own, behind those before.
  virtual void add(size_t index, const AnswerPiece& piece) = 0;
  virtual Json whole(const Usage& usage) = 0;
  // The last document of a stream, where the client wants to know what it used.
  virtual Json usage_chunk(const Usage& usage) = 0;
};

// What the jobs of one server share.
struct AnswerShared {
  Backend* backend;
  Metrics* metrics;
  std::atomic<int64_t> requests = 0;  // at the engine
  int64_t max_requests = 512;         // more are refused
};

// The answers to one HTTP request: submits its prompts, turns tokens into text, ends answers at stop strings,
// and cancels everything when the client goes away. All of it runs on the reply's strand but for the engine's
// calls.
class AnswerJob : public std::enable_shared_from_this<AnswerJob> {
 public:
  AnswerJob(AnswerShared& shared, const ServedModel& model, GenerationSettings settings,
            std::shared_ptr<HttpReply> reply, std::unique_ptr<AnswerWriter> writer);
  ~AnswerJob();

  // An ApiError where a prompt is too long or the server has enough to do. Answer i is of prompt i / n.
  void start(std::vector<std::vector<int64_t>> prompts);

 private:
  using Clock = std::chrono::steady_clock;
  struct Answer {
    std::optional<RequestId> id;
    AnswerText text;
    int64_t prompt_tokens = 0, tokens = 0, cached = 0;
    Clock::time_point last;
    bool done = false;
  };

  void update(size_t index, const RequestUpdate& update);
  void deliver(size_t index, AnswerPiece piece);
  void finish();
  void cancel();
  double seconds_since(Clock::time_point then) const;

  AnswerShared& shared_;
  const ServedModel& model_;
  GenerationSettings settings_;
  std::shared_ptr<HttpReply> reply_;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<Answer> answers_;
  Clock::time_point began_ = Clock::now();
  int64_t counted_ = 0;  // of shared_.requests
  bool over_ = false, streaming_ = false;
};

}  // namespace megatron
