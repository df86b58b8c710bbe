#include "megatron/tokenizers/models/word_piece.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"

namespace megatron::tokenizers {

WordPieceModel::WordPieceModel(const Json& settings)
    : WordPieceModel(
          read_vocabulary(settings.at("vocab")), string_or(settings, "unk_token", "[UNK]"),
          string_or(settings, "continuing_subword_prefix", "##"),
          static_cast<size_t>(std::max<int64_t>(0, int_or(settings, "max_input_chars_per_word", 100)))) {}

WordPieceModel::WordPieceModel(Vocabulary vocabulary, std::string_view unknown, std::string prefix,
                               size_t max_characters)
    : Model(std::move(vocabulary)), prefix_(std::move(prefix)), max_characters_(max_characters) {
  const auto id = vocabulary_.find(unknown);
  require(id.has_value(), "WordPiece: the unknown token '{}' is no piece of the vocabulary", unknown);
  unknown_ = *id;
  for (TokenId i = 0; i < vocabulary_.end_id(); ++i)
    max_piece_ = std::max(max_piece_, vocabulary_.piece(i).size());
}

void WordPieceModel::tokenize(std::string_view word, std::vector<WordToken>& tokens) const {
  const auto size = static_cast<uint32_t>(word.size());
  const auto leads = [&](size_t i) { return (static_cast<unsigned char>(word[i]) & 0xC0) != 0x80; };
  size_t characters = 0;
  for (size_t i = 0; i < word.size(); ++i) characters += leads(i);
  const size_t before = tokens.size();
  const auto give_up = [&] {
    tokens.resize(before);
    tokens.push_back({unknown_, {0, size}});
  };
  if (characters > max_characters_) return give_up();
  std::string piece;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = std::min(word.size(), begin + max_piece_);
    std::optional<TokenId> id;
    for (; end > begin; --end) {
      if (end < word.size() && !leads(end)) continue;
      if (begin == 0) {
        id = vocabulary_.find(word.substr(0, end));
      } else {
        piece = prefix_;
        piece += word.substr(begin, end - begin);
        id = vocabulary_.find(piece);
      }
      if (id) break;
    }
    if (!id) return give_up();
    tokens.push_back({*id, {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}});
    begin = end;
  }
}

WordLevelModel::WordLevelModel(const Json& settings)
    : Model(read_vocabulary(settings.at("vocab"))),
      unknown_(vocabulary_.find(string_or(settings, "unk_token", "<unk>"))) {}

void WordLevelModel::tokenize(std::string_view word, std::vector<WordToken>& tokens) const {
  auto id = vocabulary_.find(word);
  if (!id) id = unknown_;
  require(id.has_value(), "WordLevel: '{}' is no piece and there is no unknown token", word);
  tokens.push_back({*id, {0, static_cast<uint32_t>(word.size())}});
}

}  // namespace megatron::tokenizers
