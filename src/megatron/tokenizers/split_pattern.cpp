#include "megatron/tokenizers/split_pattern.h"

#include "megatron/base/error.h"

namespace megatron::tokenizers {

SplitPattern::SplitPattern(const Json& settings) {
  if (const Json* text = settings.find("String"))
    text_ = text->as_string();
  else if (const Json* pattern = settings.find("Regex"))
    *this = regex(pattern->as_string());
  else
    fail("tokenizer.json: a pattern has neither String nor Regex ({})", settings.dump());
}

SplitPattern SplitPattern::text(std::string text) {
  SplitPattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

SplitPattern SplitPattern::regex(std::string_view expression) {
  SplitPattern pattern;
  pattern.rules_ = WordRules::of(expression);
  if (!pattern.rules_) pattern.regex_.emplace(expression);
  return pattern;
}

std::vector<ByteRange> SplitPattern::matches(std::string_view text) const {
  if (text.empty()) return {};  // not even an empty match
  if (regex_) return regex_->find_all(text);
  std::vector<ByteRange> found;
  if (rules_) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = word_end(*rules_, text.data(), at, text.size());
      found.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  } else if (!text_.empty()) {
    for (size_t at = 0; (at = text.find(text_, at)) != std::string_view::npos; at += text_.size())
      found.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + text_.size())});
  }
  return found;
}

}  // namespace megatron::tokenizers
