#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "megatron/server/backend.h"

namespace megatron {

// An engine without a model: the likeliest next token is always that of a script, then the end token.
// Sampling, constraints, log-probabilities and limits are real, and requests get their tokens in turns as in
// a batch.
class ScriptedBackend : public Backend {
 public:
  ScriptedBackend(std::vector<int64_t> script, int64_t end_token, int64_t vocab_size,
                  std::chrono::microseconds per_step = {})
      : script_(std::move(script)), end_token_(end_token), vocab_size_(vocab_size), per_step_(per_step) {
    thread_ = std::thread([this] { run(); });
  }
  ~ScriptedBackend() override { stop(); }

  // Cancels what is left; nobody is told anything afterwards.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  RequestId submit(Request request, RequestListener listener) override {
    const std::lock_guard lock(mutex_);
    const RequestId id = next_++;
    Sampler sampler(request.sampling, request.prompt);
    auto constraint = request.constraint ? request.constraint->start() : nullptr;
    active_.emplace(
        id, Active{std::move(request), std::move(listener), std::move(sampler), std::move(constraint)});
    changed_.notify_all();
    return id;
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = active_.find(id); found != active_.end()) found->second.cancelled = true;
    ++cancelled_;
    changed_.notify_all();
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.running = std::ssize(active_);
    stats.generated_tokens = generated_;
    stats.total_blocks = 100;
    return stats;
  }
  int64_t cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

 private:
  struct Active {
    Request request;
    RequestListener listener;
    Sampler sampler;
    std::unique_ptr<ConstraintState> constraint;
    int64_t generated = 0;
    bool cancelled = false;
  };

  std::vector<float> logits_for(int64_t token) const {
    std::vector<float> logits(static_cast<size_t>(vocab_size_), 0.0F);
    for (size_t i = 0; i < logits.size(); i += 7) logits[i] = 0.5F;
    logits[static_cast<size_t>(token)] = 20.0F;
    return logits;
  }

  RequestUpdate step(Active& active) const {
    RequestUpdate update;
    if (active.cancelled) {
      update.finish = FinishReason::cancelled;
      return update;
    }
    const Request& request = active.request;
    if (active.generated == 0 && request.prompt_logprobs >= 0)
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        const std::vector<float> logits = logits_for(request.prompt[i]);
        update.prompt.push_back(log_probabilities(logits, request.prompt[i], request.prompt_logprobs));
      }
    const bool scripted = active.generated < std::ssize(script_);
    std::vector<float> logits =
        logits_for(scripted ? script_[static_cast<size_t>(active.generated)] : end_token_);
    std::vector<uint32_t> bits;
    if (active.constraint) {
      bits.resize(static_cast<size_t>(vocab_size_ + 31) / 32);
      active.constraint->allowed(bits);
    }
    ChoiceLimits limits{.allowed = bits};
    if (active.generated < request.min_tokens) limits.forbidden = request.end_tokens;
    const TokenChoice choice = active.sampler.choose(logits, limits, request.top_logprobs);
    active.sampler.push(choice.id);
    if (active.constraint) active.constraint->advance(choice.id);
    ++active.generated;
    update.tokens.push_back(choice);
    if (std::ranges::find(request.end_tokens, choice.id) != request.end_tokens.end())
      update.finish = FinishReason::end_token;
    else if (active.generated >= request.max_tokens)
      update.finish = FinishReason::length;
    return update;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !active_.empty(); });
      if (stopping_) {
        std::map<RequestId, Active> left = std::move(active_);
        lock.unlock();
        RequestUpdate update;
        update.finish = FinishReason::cancelled;
        for (auto& [id, active] : left) active.listener(update);
        return;
      }
      for (auto at = active_.begin(); at != active_.end();) {
        RequestUpdate update;
        try {
          update = step(at->second);
        } catch (const std::exception&) {
          update.finish = FinishReason::failed;
        }
        generated_ += std::ssize(update.tokens);
        at->second.listener(update);
        at = update.finish ? active_.erase(at) : std::next(at);
      }
      if (per_step_.count() > 0) {
        lock.unlock();
        std::this_thread::sleep_for(per_step_);
        lock.lock();
      }
    }
  }

  std::vector<int64_t> script_;
  int64_t end_token_, vocab_size_;
  std::chrono::microseconds per_step_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Active> active_;
  RequestId next_ = 1;
  int64_t generated_ = 0, cancelled_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace megatron
