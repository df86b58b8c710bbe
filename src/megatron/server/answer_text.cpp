#include "megatron/server/answer_text.h"

namespace megatron {

AnswerText::AnswerText(const ServedModel& model, TextOptions options)
    : model_(&model),
      options_(std::move(options)),
      decoder_(model.tokenizer, false),
      scanner_(options_.stop) {}

std::string AnswerText::push(int64_t token) {
  const auto id = static_cast<TokenId>(token);
  if (stop_ || token < 0 || token >= model_->tokenizer.vocab_size()) return "";
  if (options_.skip_special_tokens && model_->tokenizer.is_special(id) &&
      !options_.shown_special_tokens.contains(token))
    return "";
  return scan(decoder_.push(id));
}

std::string AnswerText::finish() {
  if (stop_) return "";
  std::string text = scan(decoder_.finish());
  return stop_ ? text : text + scanner_.flush();
}

std::string AnswerText::scan(const std::string& text) {
  MarkerScanner::Found found = scanner_.push(text);
  if (found.marker < 0) return found.before;
  stop_ = options_.stop[static_cast<size_t>(found.marker)];
  return options_.include_stop ? found.before + *stop_ : found.before;
}

}  // namespace megatron
