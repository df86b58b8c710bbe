#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "megatron/tokenizers/chat/limits.h"

namespace megatron::chat {

// Counts what a rendering uses and stops it beyond its limits.
class Budget {
 public:
  explicit Budget(const ChatLimits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void step(int64_t count = 1) {
    if ((steps_ += count) > limits_.steps) [[unlikely]]
      out_of_steps();
  }
  void take(size_t bytes) {
    if (bytes > limits_.memory_bytes - bytes_) [[unlikely]]
      out_of_memory();
    step(static_cast<int64_t>(bytes / 16));
    bytes_ += bytes;
  }
  void give(size_t bytes) { bytes_ -= bytes; }
  void enter() {
    if (++depth_ > limits_.depth) [[unlikely]]
      too_deep();
  }
  void leave() { --depth_; }
  const ChatLimits& limits() const { return limits_; }

 private:
  [[noreturn]] void out_of_steps() const;
  [[noreturn]] void out_of_memory() const;
  [[noreturn]] void too_deep();

  ChatLimits limits_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
};

// One level of nested evaluation.
class Level {
 public:
  explicit Level(Budget& budget) : budget_(budget) { budget_.enter(); }
  ~Level() { budget_.leave(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Budget& budget_;
};

// Bytes of a budget, given back with the value that they belong to.
class Charge {
 public:
  Charge() = default;
  Charge(Budget& budget, size_t bytes) : budget_(&budget), bytes_(bytes) { budget.take(bytes); }
  Charge(Charge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (budget_) budget_->give(bytes_);
  }

 private:
  Budget* budget_ = nullptr;
  size_t bytes_ = 0;
};

// A text under construction, counted while it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  ~TextBuilder() { budget_.give(taken_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void add(std::string_view text) {
    budget_.take(text.size());
    taken_ += text.size();
    text_ += text;
  }
  void add(char c) { add(std::string_view(&c, 1)); }
  void repeat(std::string_view text, int64_t count) {
    if (count <= 0 || text.empty()) return;
    const auto times = static_cast<size_t>(count);
    const size_t bytes = times > SIZE_MAX / text.size() ? SIZE_MAX : times * text.size();
    budget_.take(bytes);
    taken_ += bytes;
    for (size_t i = 0; i < times; ++i) text_ += text;
  }
  const std::string& text() const { return text_; }
  std::string take() {
    budget_.give(std::exchange(taken_, 0));
    return std::move(text_);
  }

 private:
  Budget& budget_;
  std::string text_;
  size_t taken_ = 0;
};

}  // namespace megatron::chat
