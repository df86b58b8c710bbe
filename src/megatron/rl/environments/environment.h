#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/datasets/sft/conversation.h"

namespace megatron::rl {

// A prompt of an environment, and what its reward needs to know.
struct RolloutTask {
  std::string environment;
  int64_t index = 0;                  // of the task among those of its split
  std::vector<ChatMessage> messages;  // for a chat template
  std::string prompt;                 // for models without one
  Json data = Json::object();         // the row of the data file
};

// What a model answered, without special tokens.
struct RolloutResponse {
  std::string text;
  bool stopped = true;  // by itself or a stop word, not by the limit of tokens
};

// Tasks and the rule that rewards answers to them. Tasks [0, size()) are for training; those for validation
// are counted apart. Nothing changes once it is made, so threads may share one.
class Environment {
 public:
  explicit Environment(std::string name) : name_(std::move(name)) {}
  virtual ~Environment() = default;
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  const std::string& name() const { return name_; }
  virtual int64_t size() const = 0;
  virtual RolloutTask task(int64_t index) const = 0;
  virtual int64_t validation_size() const = 0;
  virtual RolloutTask validation_task(int64_t index) const = 0;
  // The reward depends on the arguments alone.
  virtual double reward(const RolloutTask& task, const RolloutResponse& response) const = 0;

 private:
  std::string name_;
};

}  // namespace megatron::rl
