#include "megatron/inference/constraint/token_trie.h"

#include <algorithm>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/inference/constraint/character_tables.h"
#include "megatron/tokenizers/models/byte_characters.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

constexpr size_t kMaxTokenBytes = 60000;

// "<0x0A>" of tokenizers that fall back to bytes.
std::optional<char> fallback_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return {};
  int value = 0;
  for (char c : piece.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return {};
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

}  // namespace

std::vector<std::string> token_bytes(const Tokenizer& tokenizer) {
  const auto size = static_cast<TokenId>(tokenizer.vocab_size());
  // A token's text may depend on the one before it (the first loses its space), so each is read behind a
  // letter.
  const std::vector<TokenId> front = tokenizer.encode("a");
  std::vector<TokenId> ids = front.empty() ? std::vector<TokenId>{} : std::vector<TokenId>{front.back()};
  const std::string before = ids.empty() ? "" : tokenizer.decode(ids);
  ids.push_back(0);
  std::vector<std::string> bytes(static_cast<size_t>(size));
  for (TokenId id = 0; id < size; ++id) {
    std::string& own = bytes[static_cast<size_t>(id)];
    if (tokenizer.is_special(id)) continue;
    const std::string piece = tokenizer.piece_of(id);
    if (piece.empty()) continue;
    if (const auto byte = fallback_byte(piece)) {
      own = std::string(1, *byte);
      continue;
    }
    ids.back() = id;
    const std::string text = tokenizer.decode(ids);
    if (text.starts_with(before)) own = text.substr(before.size());
    if (own.find("\xEF\xBF\xBD") == std::string::npos && tokenizers::is_utf8(own)) continue;
    // Part of a character: decoding cannot show it, the piece may.
    own = tokenizers::bytes_of_piece(piece).value_or("");
  }
  return bytes;
}

TokenTrie::TokenTrie(std::vector<Entry> entries) {
  std::erase_if(
      entries, [](const Entry& entry) { return entry.bytes.empty() || entry.bytes.size() > kMaxTokenBytes; });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.token < b.token;
  });
  std::vector<size_t> path;  // nodes from the root to the last entry
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (const Entry& entry : entries) {
    size_t shared = 0;
    while (shared < last.size() && shared < entry.bytes.size() && last[shared] == entry.bytes[shared])
      ++shared;
    close(shared);
    for (size_t i = shared; i < entry.bytes.size(); ++i) {
      path.push_back(nodes_.size());
      nodes_.push_back({.end = 0,
                        .first_token = static_cast<uint32_t>(tokens_.size()),
                        .depth = static_cast<uint16_t>(i + 1),
                        .byte = static_cast<uint8_t>(entry.bytes[i])});
    }
    tokens_.push_back(entry.token);
    last = entry.bytes;
  }
  close(0);
}

ConstraintVocabulary::ConstraintVocabulary(std::vector<std::string> token_texts, std::vector<int64_t> ends,
                                           int64_t rows)
    : bytes(std::move(token_texts)), end_tokens(std::move(ends)), size(rows) {
  std::vector<TokenTrie::Entry> entries;
  // A token that ends a text says nothing in it, also where the tokenizer does not call it special.
  for (int64_t token = 0; token < std::min<int64_t>(std::ssize(bytes), size); ++token)
    if (std::ranges::find(end_tokens, token) == end_tokens.end())
      entries.push_back({bytes[static_cast<size_t>(token)], token});
  trie = TokenTrie(std::move(entries));
  characters = std::make_shared<CharacterTables>();
  std::erase_if(end_tokens, [&](int64_t token) { return token < 0 || token >= size; });
}

}  // namespace megatron
