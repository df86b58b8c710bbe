#include "megatron/tokenizers/sentencepiece/sp_normalizer.h"

#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {

SpNormalizer::SpNormalizer(const SentencePieceFile& file, std::string_view origin)
    : map_(file.char_map, origin),
      dummy_prefix_(file.dummy_prefix),
      remove_extra_(file.remove_extra_whitespaces),
      escape_(file.escape_whitespaces),
      suffix_(file.whitespace_as_suffix) {
  std::vector<std::pair<std::string_view, int32_t>> texts;
  for (size_t i = 0; i < file.pieces.size(); ++i)
    if (file.pieces[i].kind == SentencePieceFile::Kind::user_defined && !file.pieces[i].text.empty())
      texts.emplace_back(file.pieces[i].text, static_cast<int32_t>(i));
  any_user_defined_ = !texts.empty();
  user_defined_ = ByteTrie(std::move(texts));
}

size_t SpNormalizer::user_defined(std::string_view text) const {
  size_t longest = 0;
  if (any_user_defined_) user_defined_.prefixes(text, [&](size_t length, int32_t) { longest = length; });
  return longest;
}

// User-defined pieces stay as they are; a malformed byte counts as U+FFFD.
SpNormalizer::Prefix SpNormalizer::prefix(std::string_view text) const {
  if (const size_t length = user_defined(text)) return {text.substr(0, length), length};
  if (const auto match = map_.longest(text); match.length > 0) return {match.replacement, match.length};
  const Utf8Char c = decode_utf8(text);
  if (!c.valid) return {"\xEF\xBF\xBD", 1};
  return {text.substr(0, c.length), c.length};
}

std::string SpNormalizer::apply(std::string_view text, std::vector<uint32_t>* places) const {
  std::string result;
  size_t consumed = 0;
  const auto put = [&](std::string_view part) {
    result += part;
    if (places) places->insert(places->end(), part.size(), static_cast<uint32_t>(consumed));
  };
  const std::string_view space = escape_ ? kSpaceSymbol : " ";
  if (remove_extra_)
    while (!text.empty()) {
      const Prefix p = prefix(text);
      if (p.text != " ") break;
      text.remove_prefix(p.consumed);
      consumed += p.consumed;
    }
  if (text.empty()) {
    if (places) places->push_back(static_cast<uint32_t>(consumed));
    return result;
  }
  result.reserve(text.size() + text.size() / 2);
  if (dummy_prefix_ && !suffix_) put(space);
  bool after_space = remove_extra_;
  const bool plain = !places && map_.empty() && !any_user_defined_;
  while (!text.empty()) {
    if (plain) {  // nothing but spaces changes
      size_t end = 0;
      while (end < text.size() && text[end] != ' ' && static_cast<unsigned char>(text[end]) < 0x80) ++end;
      if (end > 0) {
        result += text.substr(0, end);
        text.remove_prefix(end);
        after_space = false;
        continue;
      }
    }
    const Prefix p = prefix(text);
    std::string_view part = p.text;
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    if (!part.empty()) {
      if (part.find(' ') == std::string_view::npos)
        put(part);
      else
        for (const char& c : part) put(c == ' ' ? space : std::string_view(&c, 1));
      after_space = part.ends_with(' ');
    }
    consumed += p.consumed;
    text.remove_prefix(p.consumed);
    if (!remove_extra_) after_space = false;
  }
  if (remove_extra_)
    while (result.ends_with(space)) {
      result.erase(result.size() - space.size());
      if (places) {
        consumed = (*places)[result.size()];
        places->resize(result.size());
      }
    }
  if (dummy_prefix_ && suffix_) put(space);
  if (places) places->push_back(static_cast<uint32_t>(consumed));
  return result;
}

}  // namespace megatron::tokenizers
