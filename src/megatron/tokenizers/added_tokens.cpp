#include "megatron/tokenizers/added_tokens.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

size_t previous_character(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && properties_of(decode_utf8(text.substr(previous_character(text, at))).point).word();
}

bool word_at(std::string_view text, size_t at) {
  return at < text.size() && properties_of(decode_utf8(text.substr(at)).point).word();
}

size_t skip_spaces_left(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = previous_character(text, at);
    if (!properties_of(decode_utf8(text.substr(before)).point).space()) break;
    at = before;
  }
  return at;
}

size_t skip_spaces_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text.substr(at));
    if (!properties_of(c.point).space()) break;
    at += c.length;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const Json& settings, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  for (const Json& entry : settings.as_array()) {
    AddedToken token;
    token.content = entry.at("content").as_string();
    const int64_t id = entry.at("id").as_int();
    require(id >= 0 && id < 1 << 22, "tokenizer.json: added token '{}' has id {}", token.content, id);
    token.id = vocabulary.find(token.content).value_or(static_cast<TokenId>(id));
    token.special = bool_or(entry, "special", false);
    token.single_word = bool_or(entry, "single_word", false);
    token.lstrip = bool_or(entry, "lstrip", false);
    token.rstrip = bool_or(entry, "rstrip", false);
    token.normalized = bool_or(entry, "normalized", !token.special);
    if (!token.content.empty()) tokens_.push_back(std::move(token));
  }
  build(normalizer);
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer)
    : tokens_(std::move(tokens)) {
  build(normalizer);
}

void AddedTokens::build(const Normalizer* normalizer) {
  std::vector<std::pair<std::string_view, int32_t>> plain, normalized;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    by_id_[token.id] = i;
    by_content_[token.content] = i;
    end_id_ = std::max(end_id_, token.id + 1);
    token.shown = token.content;
    if (token.normalized && normalizer != nullptr) {
      AlignedText text(token.content, 0, false);
      normalizer->apply(text);
      token.shown = text.text();
    }
    if (token.shown.empty()) continue;
    Finder& finder = token.normalized ? normalized_ : plain_;
    (token.normalized ? normalized : plain).emplace_back(token.shown, static_cast<int32_t>(i));
    finder.tokens.push_back(i);
    finder.first[static_cast<unsigned char>(token.shown[0])] = true;
  }
  for (Finder* finder : {&plain_, &normalized_})
    if (std::count(std::begin(finder->first), std::end(finder->first), true) == 1)
      finder->only_first = static_cast<int>(
          std::find(std::begin(finder->first), std::end(finder->first), true) - std::begin(finder->first));
  plain_.trie = ByteTrie(std::move(plain));
  normalized_.trie = ByteTrie(std::move(normalized));
}

// Most vocabularies' tokens all begin with <, which memchr finds several bytes at a time.
size_t AddedTokens::Finder::next_begin(std::string_view text, size_t at) const {
  if (tokens.empty()) return text.size();
  if (only_first >= 0) return std::min(text.find(static_cast<char>(only_first), at), text.size());
  while (at < text.size() && !first[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

std::vector<AddedTokens::Part> AddedTokens::find(std::string_view text, const Finder& finder) const {
  std::vector<Part> parts;
  size_t told = 0;
  const auto tell = [&](size_t begin, size_t end, const AddedToken* token) {
    parts.push_back({{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, token});
  };
  for (size_t at = 0;;) {
    at = finder.next_begin(text, at);
    if (at >= text.size()) break;
    size_t length = 0;
    int32_t index = -1;
    finder.trie.prefixes(text.substr(at), [&](size_t prefix, int32_t number) {
      length = prefix;
      index = number;
    });
    if (index < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    const AddedToken& token = tokens_[index];
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    // The token before may have taken spaces that this one is made of.
    if (token.lstrip) begin = std::max(skip_spaces_left(text, begin), told);
    if (token.rstrip) end = skip_spaces_right(text, end);
    if (begin > end) continue;  // the package panics
    if (told < begin) tell(told, begin, nullptr);
    if (begin < end) tell(begin, end, &token);
    told = end;
  }
  if (told < text.size()) tell(told, text.size(), nullptr);
  return parts;
}

const AddedToken* AddedTokens::by_id(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace megatron::tokenizers
