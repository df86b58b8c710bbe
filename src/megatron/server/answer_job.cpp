#include "megatron/server/answer_job.h"

#include <algorithm>

#include "megatron/server/api_error.h"

namespace megatron {

Json Usage::json() const {
  Json details = Json::object();
  details["cached_tokens"] = cached_tokens;
  Json usage = Json::object();
  usage["prompt_tokens"] = prompt_tokens;
  usage["completion_tokens"] = completion_tokens;
  usage["total_tokens"] = prompt_tokens + completion_tokens;
  usage["prompt_tokens_details"] = details;
  return usage;
}

AnswerJob::AnswerJob(AnswerShared& shared, const ServedModel& model, GenerationSettings settings,
                     std::shared_ptr<HttpReply> reply, std::unique_ptr<AnswerWriter> writer)
    : shared_(shared),
      model_(model),
      settings_(std::move(settings)),
      reply_(std::move(reply)),
      writer_(std::move(writer)) {}

AnswerJob::~AnswerJob() { shared_.requests -= counted_; }

double AnswerJob::seconds_since(Clock::time_point then) const {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

void AnswerJob::start(std::vector<std::vector<int64_t>> prompts) {
  for (const auto& prompt : prompts) {
    if (prompt.empty()) throw ApiError(400, "the prompt has no tokens", "prompt");
    const auto length = static_cast<int64_t>(prompt.size());
    const int64_t wanted = std::max<int64_t>(settings_.request.max_tokens, 1);
    if (wanted > model_.max_length - length)
      throw ApiError(
          400,
          fmt::format(
              "This model's maximum context length is {} tokens. However, you requested {} tokens ({} "
              "in the prompt, {} for the answer). Please reduce the length of either.",
              model_.max_length, static_cast<uint64_t>(length) + static_cast<uint64_t>(wanted), length,
              wanted),
          "max_tokens", "context_length_exceeded");
  }
  const auto count = static_cast<int64_t>(prompts.size()) * settings_.answers;
  if (count > shared_.max_requests)
    throw ApiError(400, fmt::format("the request asks for {} answers, {} are taken at most; ask for fewer",
                                    count, shared_.max_requests));
  if (shared_.requests.fetch_add(count) + count > shared_.max_requests) {
    shared_.requests -= count;
    throw ApiError(429, "The server has as many requests as it takes; try again in a moment", "",
                   "server_busy");
  }
  counted_ = count;
  for (const auto& prompt : prompts)
    for (int64_t i = 0; i < settings_.answers; ++i)
      answers_.push_back({.id = {},
                          .text = AnswerText(model_, settings_.text),
                          .prompt_tokens = static_cast<int64_t>(prompt.size()),
                          .last = began_});
  reply_->on_drop([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel();
  });
  for (size_t index = 0; index < answers_.size(); ++index) {
    Request request = settings_.request;
    request.prompt = prompts[index / static_cast<size_t>(settings_.answers)];
    request.sampling.seed += index % static_cast<size_t>(settings_.answers);
    const int64_t room = model_.max_length - static_cast<int64_t>(request.prompt.size());
    request.max_tokens = request.max_tokens < 0 ? room : std::max<int64_t>(request.max_tokens, 1);
    try {
      answers_[index].id = shared_.backend->submit(
          std::move(request), [self = shared_from_this(), index](const RequestUpdate& update) {
            self->reply_->post([self, index, update] { self->update(index, update); });
          });
    } catch (const ConfigError& error) {
      cancel();
      throw ApiError(400, error.what());
    }
  }
}

void AnswerJob::update(size_t index, const RequestUpdate& update) {
  Answer& answer = answers_[index];
  if (over_ || answer.done) return;
  // What this job cancelled itself is over or done; the rest is cut off by a server that ends.
  if (update.finish == FinishReason::failed || update.finish == FinishReason::cancelled) {
    cancel();
    const ApiError error = update.finish == FinishReason::failed
                               ? ApiError(500, "the engine failed on this request")
                               : ApiError(503, "the server is shutting down");
    if (!streaming_) return reply_->send(error_response(error));
    reply_->write("data: " + error_body(error) + "\n\n");
    return reply_->end();
  }
  answer.cached = std::max(answer.cached, update.cached_tokens);
  AnswerPiece piece{.prompt = update.prompt};
  for (size_t i = 0; i < update.tokens.size() && !answer.text.stopped(); ++i) {
    const TokenChoice& token = update.tokens[i];
    const double waited = seconds_since(answer.last);
    answer.tokens == 0 ? shared_.metrics->first_token(waited) : shared_.metrics->token_gap(waited);
    answer.last = Clock::now();
    ++answer.tokens;
    const bool ends = update.finish == FinishReason::end_token && i + 1 == update.tokens.size();
    if (settings_.request.max_tokens == 0) break;  // only the prompt was asked about
    // The token that ends an answer is part of its text where the client asks for it.
    if (!ends || settings_.text.include_stop) piece.text += answer.text.push(token.id);
    if (!ends) piece.tokens.push_back(token);
  }
  if (answer.text.stopped()) {
    piece.finish_reason = "stop";
    piece.stop = *answer.text.stop();
    if (!update.finish) shared_.backend->cancel(*answer.id);
  } else if (update.finish) {
    piece.text += answer.text.finish();
    piece.finish_reason = update.finish == FinishReason::length && !answer.text.stopped() ? "length" : "stop";
    if (answer.text.stopped())
      piece.stop = *answer.text.stop();
    else if (update.finish == FinishReason::end_token && !update.tokens.empty() &&
             settings_.stop_tokens.contains(update.tokens.back().id))
      piece.stop = update.tokens.back().id;
  }
  deliver(index, std::move(piece));
}

void AnswerJob::deliver(size_t index, AnswerPiece piece) {
  Answer& answer = answers_[index];
  // The metrics count an answer before its last event is sent: a client that has read it finds it there.
  if (!piece.finish_reason.empty())
    shared_.metrics->finished(piece.finish_reason, seconds_since(began_), answer.prompt_tokens,
                              answer.tokens);
  if (settings_.stream) {
    if (!streaming_) reply_->begin(200, "text/event-stream");
    streaming_ = true;
    std::string text;
    for (const Json& chunk : writer_->chunks(index, piece)) text += "data: " + chunk.dump() + "\n\n";
    reply_->write(std::move(text));
  } else {
    writer_->add(index, piece);
  }
  if (piece.finish_reason.empty()) return;
  answer.done = true;
  if (std::ranges::all_of(answers_, &Answer::done)) finish();
}

void AnswerJob::finish() {
  over_ = true;
  Usage usage;
  for (size_t i = 0; i < answers_.size(); ++i) {
    usage.completion_tokens += settings_.request.max_tokens == 0 ? 0 : answers_[i].tokens;
    if (i % static_cast<size_t>(settings_.answers) != 0) continue;  // a prompt counts once
    usage.prompt_tokens += answers_[i].prompt_tokens;
    usage.cached_tokens += answers_[i].cached;
  }
  if (!settings_.stream) return reply_->send({.body = writer_->whole(usage).dump()});
  if (settings_.include_usage) reply_->write("data: " + writer_->usage_chunk(usage).dump() + "\n\n");
  reply_->write("data: [DONE]\n\n");
  reply_->end();
}

void AnswerJob::cancel() {
  if (over_) return;
  over_ = true;
  for (Answer& answer : answers_) {
    if (answer.done || !answer.id) continue;
    shared_.backend->cancel(*answer.id);
    shared_.metrics->finished("abort", seconds_since(began_), answer.prompt_tokens, answer.tokens);
  }
}

}  // namespace megatron
