#include "megatron/tokenizers/models/unigram.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

Vocabulary pieces_of(const Json& settings) {
  Vocabulary vocabulary;
  TokenId id = 0;
  for (const Json& piece : settings.at("vocab").as_array()) {
    require(piece.size() == 2, "tokenizer.json: piece {} of Unigram has {} parts, expected text and score",
            id, piece.size());
    vocabulary.add(piece[0].as_string(), id++);
  }
  return vocabulary;
}

}  // namespace

UnigramModel::UnigramModel(const Json& settings)
    : Model(pieces_of(settings)), byte_fallback_(bool_or(settings, "byte_fallback", false)) {
  double least = 0;
  std::vector<std::pair<std::string_view, int32_t>> texts;
  for (const Json& piece : settings.at("vocab").as_array()) {
    const auto id = static_cast<int32_t>(scores_.size());
    const double score = piece[1].as_double();
    least = scores_.empty() ? score : std::min(least, score);
    scores_.push_back(score);
    if (!piece[0].as_string().empty()) texts.emplace_back(piece[0].as_string(), id);
  }
  trie_ = ByteTrie(std::move(texts));
  unknown_score_ = least - 10.0;
  if (const int64_t unknown = int_or(settings, "unk_id", -1); unknown >= 0) {
    require(unknown < static_cast<int64_t>(scores_.size()),
            "tokenizer.json: unk_id is {}, the vocabulary has {} pieces", unknown, scores_.size());
    unknown_ = static_cast<TokenId>(unknown);
  }
}

void UnigramModel::tokenize(std::string_view word, std::vector<WordToken>& tokens) const {
  struct Best {
    double score = 0;
    uint32_t begin = 0;
    TokenId id = -1;  // none ends here
  };
  std::vector<Best> best(word.size() + 1);
  for (size_t begin = 0; begin < word.size();) {
    const uint32_t length = decode_utf8(word.substr(begin)).length;
    const double score_here = best[begin].score;
    bool single = false;
    const auto offer = [&](size_t end, double score, TokenId id) {
      Best& target = best[end];
      if (target.id < 0 || score > target.score) target = {score, static_cast<uint32_t>(begin), id};
    };
    trie_.prefixes(word.substr(begin), [&](size_t piece_length, int32_t id) {
      offer(begin + piece_length, scores_[id] + score_here, id);
      if (piece_length == length) single = true;
    });
    if (!single) {
      require(unknown_.has_value(), "Unigram: '{}' needs an unknown token, which the model lacks",
              word.substr(begin, length));
      offer(begin + length, unknown_score_ + score_here, *unknown_);
    }
    begin += length;
  }
  std::vector<WordToken> reversed;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    const ByteRange range{best[end].begin, static_cast<uint32_t>(end)};
    const bool unknown = unknown_ && best[end].id == *unknown_;
    if (unknown && !reversed.empty() && reversed.back().id == *unknown_)
      reversed.back().range.begin = range.begin;  // unknown neighbours are one
    else
      reversed.push_back({best[end].id, range});
  }
  for (auto token = reversed.rbegin(); token != reversed.rend(); ++token) {
    const std::string_view text = word.substr(token->range.begin, token->range.end - token->range.begin);
    if (const auto id = vocabulary_.find(text)) {
      tokens.push_back({*id, token->range});
      continue;
    }
    std::vector<TokenId> bytes;
    for (size_t i = 0; byte_fallback_ && i < text.size(); ++i)
      if (const auto id = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(text[i]))))
        bytes.push_back(*id);
    if (!bytes.empty() && bytes.size() == text.size()) {
      for (TokenId id : bytes) tokens.push_back({id, token->range});
    } else {
      tokens.push_back({*unknown_, token->range});
    }
  }
}

}  // namespace megatron::tokenizers
