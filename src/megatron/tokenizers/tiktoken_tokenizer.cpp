#include "megatron/tokenizers/tiktoken_tokenizer.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

Vocabulary vocabulary_of(const std::vector<std::pair<std::string, uint32_t>>& ranks, TokenId first_id) {
  Vocabulary vocabulary;
  vocabulary.reserve(ranks.size());
  for (const auto& [bytes, rank] : ranks) vocabulary.add(bytes, static_cast<TokenId>(rank) + first_id);
  return vocabulary;
}

// Every way to make a piece of two others merges at its own rank.
MergeTable merges_of(const std::vector<std::pair<std::string, uint32_t>>& ranks,
                     const Vocabulary& vocabulary) {
  MergeTable merges;
  for (const auto& [bytes, rank] : ranks) {
    const std::string_view text = bytes;
    const TokenId id = *vocabulary.find(text);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = vocabulary.find(text.substr(0, cut));
      if (!left) continue;
      if (const auto right = vocabulary.find(text.substr(cut))) merges.add(*left, *right, rank, id);
    }
  }
  return merges;
}

ByteBpe bpe_of(const std::vector<std::pair<std::string, uint32_t>>& ranks, std::string_view pattern,
               const Vocabulary& vocabulary) {
  const auto rules = WordRules::of(pattern, true);
  require(rules.has_value(), "TikTokenizer: the pattern '{}' is not known", pattern);
  BytePieces pieces(ranks.size());
  for (const auto& [bytes, rank] : ranks) pieces.add(bytes, *vocabulary.find(bytes));
  return ByteBpe(*rules, false, pieces, std::make_shared<const MergeTable>(merges_of(ranks, vocabulary)),
                 true);
}

}  // namespace

std::string_view tiktoken_pattern(std::string_view name) {
  if (name == "v1")
    return R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
  if (name == "v2")
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
           R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (name == "cl100k")
    return R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|)"
           R"(\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  if (name == "o200k")
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
           R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  throw ConfigError(
      fmt::format("--tiktoken-pattern: '{}' is not known (expected v1, v2, cl100k or o200k)", name));
}

TiktokenTokenizer::TiktokenTokenizer(std::vector<std::pair<std::string, uint32_t>> ranks,
                                     std::string_view pattern, TokenId first_id,
                                     std::vector<AddedToken> special_tokens, SpecialIds specials)
    : bytes_(vocabulary_of(ranks, first_id)),
      bpe_(bpe_of(ranks, pattern, bytes_)),
      added_(std::move(special_tokens), nullptr),
      specials_(specials) {}

void TiktokenTokenizer::encode(std::string_view text, bool, EncodeMemory* memory,
                               std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8_lossy(text);
  for (const AddedTokens::Part& part : added_.split(text)) {
    if (part.token)
      ids.push_back(part.token->id);
    else
      bpe_.encode(text.substr(part.range.begin, part.range.end - part.range.begin), memory, ids);
  }
}

// Bytes of all tokens, one behind the other, are the text; a token covers the characters that it has bytes
// of.
Encoding TiktokenTokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8_lossy(text);
  Encoding encoding;
  encode(text, add_special_tokens, nullptr, encoding.ids);
  size_t at = 0;
  uint32_t characters = 0;  // that begin before `at`
  for (TokenId id : encoding.ids) {
    const AddedToken* added = added_.by_id(id);
    const size_t size = added ? added->content.size() : bytes_.piece(id).size();
    const auto leads = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80; };
    const uint32_t begin = size > 0 && !leads(at) ? characters - 1 : characters;
    for (size_t end = at + size; at < end; ++at) characters += leads(at);
    encoding.offsets.push_back({begin, characters});
    encoding.pieces.push_back(piece_of(id));
  }
  return encoding;
}

std::string TiktokenTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (const AddedToken* token = added_.by_id(id)) {
      if (!skip_special_tokens) bytes += token->content;
    } else {
      bytes += bytes_.piece(id);
    }
  }
  return to_utf8_lossy(bytes);
}

int64_t TiktokenTokenizer::vocab_size() const { return std::max(bytes_.end_id(), added_.end_id()); }

std::optional<TokenId> TiktokenTokenizer::id_of(std::string_view piece) const {
  if (const AddedToken* token = added_.by_content(piece)) return token->id;
  return bytes_.find(piece);
}

std::string TiktokenTokenizer::piece_of(TokenId id) const {
  if (const AddedToken* token = added_.by_id(id)) return token->content;
  return to_utf8_lossy(bytes_.piece(id));
}

std::vector<std::pair<std::string, uint32_t>> read_tiktoken_file(std::string_view text,
                                                                 std::string_view origin) {
  std::vector<std::pair<std::string, uint32_t>> ranks;
  for (size_t line = 1; !text.empty(); ++line) {
    std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const size_t space = row.find(' ');
    uint32_t rank = 0;
    const std::string_view digits = space == std::string_view::npos ? "" : row.substr(space + 1);
    const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    require(
        fault == std::errc() && end == digits.data() + digits.size() && !digits.empty() && rank < 1u << 22,
        "{}:{}: expected base64 and a rank", origin, line);
    ranks.emplace_back(decode_base64(row.substr(0, space)), rank);
    require(!ranks.back().first.empty(), "{}:{}: the piece is empty", origin, line);
  }
  require(!ranks.empty(), "{}: the file holds no pieces", origin);
  return ranks;
}

std::vector<std::pair<std::string, uint32_t>> read_tiktoken_json(const Json& list, size_t count,
                                                                 std::string_view origin) {
  std::vector<std::pair<std::string, uint32_t>> ranks;
  for (const Json& entry : list.as_array()) {
    if (ranks.size() == count) break;
    const int64_t rank = entry.at("rank").as_int();
    require(rank == static_cast<int64_t>(ranks.size()), "{}: entry {} has rank {}", origin, ranks.size(),
            rank);
    ranks.emplace_back(decode_base64(entry.at("token_bytes").as_string()), static_cast<uint32_t>(rank));
  }
  return ranks;
}

}  // namespace megatron::tokenizers
