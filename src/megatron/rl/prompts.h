#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/rl/environments/environment.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::rl {

// What a model reads of a task and what an environment reads of its answer, by the tokenizer of a
// configuration and its chat template. Threads may share one.
class Prompts {
 public:
  explicit Prompts(const Config& config);

  // The messages by the chat template; the plain prompt where there is none.
  std::vector<int64_t> encode(const RolloutTask& task) const;
  std::string decode(std::span<const int64_t> answer) const;  // without special tokens
  const std::vector<int64_t>& end_tokens() const { return end_tokens_; }
  int64_t pad() const { return pad_; }

 private:
  int64_t trailing_ends(std::span<const TokenId> ids) const;

  Tokenizer tokenizer_;
  std::unique_ptr<const chat::ChatTemplate> template_;  // null: there is none
  Json special_tokens_;
  std::vector<int64_t> end_tokens_;
  int64_t pad_, vocabulary_;
  bool skip_bos_;
};

}  // namespace megatron::rl
