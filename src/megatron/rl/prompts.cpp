#include "megatron/rl/prompts.h"

#include <algorithm>

#include "megatron/datasets/sft/sft_templates.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron::rl {

Prompts::Prompts(const Config& config)
    : tokenizer_(open_tokenizer(config.tokenizer)),
      pad_(sft_pad_of(tokenizer_)),
      vocabulary_(config.model.vocab_size),
      skip_bos_(config.rl.rl_skip_bos_token) {
  const chat::ChatTemplates templates = find_chat_templates(
      config.tokenizer.tokenizer_model, config.tokenizer.chat_template, config.tokenizer.metadata_path);
  if (const std::string source = chat_template_of(templates); !source.empty())
    template_ = std::make_unique<const chat::ChatTemplate>(source);
  special_tokens_ = templates.special_tokens;
  const SpecialIds ids = tokenizer_.special_ids();
  for (const int64_t id : {int64_t{ids.eos}, int64_t{ids.eod}})
    if (id >= 0 && id < vocabulary_ && std::ranges::find(end_tokens_, id) == end_tokens_.end())
      end_tokens_.push_back(id);
}

std::vector<int64_t> Prompts::encode(const RolloutTask& task) const {
  std::string text = task.prompt;
  if (template_) {
    Json messages = Json::array();
    for (const ChatMessage& message : task.messages) {
      Json one = Json::object();
      one["role"] = message.role;
      one["content"] = message.content;
      messages.push_back(one);
    }
    Json conversation = Json::object();
    conversation["messages"] = messages;
    conversation["add_generation_prompt"] = true;
    text = template_->render(chat::chat_names(special_tokens_, conversation)).text;
  }
  // A template writes the special tokens itself.
  const std::vector<TokenId> plain = tokenizer_.encode(text);
  std::vector<TokenId> ids = template_ || skip_bos_ ? plain : tokenizer_.encode(text, true);
  // What a tokenizer puts behind a text would end it before the answer.
  for (int64_t added = trailing_ends(ids) - trailing_ends(plain); added > 0; --added) ids.pop_back();
  if (skip_bos_ && !ids.empty() && ids.front() == tokenizer_.special_ids().bos) ids.erase(ids.begin());
  return {ids.begin(), ids.end()};
}

int64_t Prompts::trailing_ends(std::span<const TokenId> ids) const {
  int64_t count = 0;
  while (count < std::ssize(ids) &&
         std::ranges::find(end_tokens_, ids[ids.size() - 1 - static_cast<size_t>(count)]) !=
             end_tokens_.end())
    ++count;
  return count;
}

std::string Prompts::decode(std::span<const int64_t> answer) const {
  std::vector<TokenId> ids;
  for (const int64_t id : answer)
    if (id < tokenizer_.vocab_size()) ids.push_back(static_cast<TokenId>(id));  // padding of the vocabulary
  return tokenizer_.decode(ids, true);
}

}  // namespace megatron::rl
