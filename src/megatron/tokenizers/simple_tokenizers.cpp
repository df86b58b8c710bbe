#include "megatron/tokenizers/simple_tokenizers.h"

#include <charconv>

#include "megatron/base/error.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {

void ByteLevelTokenizer::encode(std::string_view text, bool, EncodeMemory*, std::vector<TokenId>& ids) const {
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
}

Encoding ByteLevelTokenizer::encode_with_offsets(std::string_view text, bool) const {
  Encoding encoding;
  encode(text, false, nullptr, encoding.ids);
  uint32_t character = 0;
  for (size_t at = 0; at < text.size(); ++character) {
    const uint32_t length = decode_utf8(text.substr(at)).length;
    encoding.offsets.insert(encoding.offsets.end(), length, {character, character + 1});
    at += length;
  }
  for (TokenId id : encoding.ids) encoding.pieces.push_back(piece_of(id));
  return encoding;
}

// Malformed bytes are left out, as upstream does.
std::string ByteLevelTokenizer::decode(std::span<const TokenId> ids, bool) const {
  std::string bytes, text;
  for (TokenId id : ids)
    if (id < 256) bytes += static_cast<char>(id);
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(std::string_view(bytes).substr(at));
    if (c.valid) text.append(bytes, at, c.length);
    at += c.length;
  }
  return text;
}

std::optional<TokenId> ByteLevelTokenizer::id_of(std::string_view piece) const {
  if (piece.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(piece[0]);
}

std::string ByteLevelTokenizer::piece_of(TokenId id) const {
  return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : "";
}

Encoding NullTokenizer::encode_with_offsets(std::string_view text, bool) const {
  Encoding encoding;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r') {
      ++at;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const auto id = id_of(word);
    if (!id)
      throw ConfigError(fmt::format("NullTokenizer: '{}' is no id (expected 0 to {})", to_utf8_lossy(word),
                                    vocab_size_ - 1));
    encoding.ids.push_back(*id);
    encoding.pieces.emplace_back(word);
    encoding.offsets.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
    at = end;
  }
  return encoding;
}

void NullTokenizer::encode(std::string_view text, bool, EncodeMemory*, std::vector<TokenId>& ids) const {
  const Encoding encoding = encode_with_offsets(text, false);
  ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
}

std::string NullTokenizer::decode(std::span<const TokenId> ids, bool) const {
  std::string text;
  for (TokenId id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

std::optional<TokenId> NullTokenizer::id_of(std::string_view piece) const {
  TokenId id = 0;
  const auto [end, fault] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
  if (fault != std::errc() || end != piece.data() + piece.size() || id < 0 || id >= vocab_size_)
    return std::nullopt;
  return id;
}

}  // namespace megatron::tokenizers
