#include <algorithm>
#include <limits>
#include <map>

#include "megatron/base/error.h"
#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"
#include "megatron/tokenizers/word_memory.h"

namespace megatron::tokenizers {
namespace {

using Kind = SentencePieceFile::Kind;

// Pairs merge to the piece that their texts make, the highest score first, of equal ones the leftmost.
class SpBpe : public SpModel {
 public:
  SpBpe(const SentencePieceFile& file, const SpNormalizer& normalizer, const Vocabulary& pieces,
        TokenId unknown, std::string_view origin)
      : normalizer_(normalizer), unknown_(unknown), named_(static_cast<TokenId>(file.pieces.size())) {
    std::map<float, uint32_t, std::greater<>> ranks;
    for (const auto& piece : file.pieces) {
      require(piece.kind != Kind::unused, "{}: piece '{}' is unused, which BPE does not support", origin,
              piece.text);
      ranks[piece.score] = 0;
    }
    uint32_t next = 0;
    for (auto& [score, rank] : ranks) rank = next++;
    for (size_t i = 0; i < file.pieces.size(); ++i)
      if (pieces.find(file.pieces[i].text) &&
          decode_utf8(file.pieces[i].text).length == file.pieces[i].text.size())
        characters_.add(file.pieces[i].text, static_cast<TokenId>(i));
    // Characters may be part of pieces without being pieces: they get ids of their own, above the others.
    TokenId next_id = named_;
    const auto id_of = [&](std::string_view text) {
      if (const auto id = pieces.find(text)) return *id;
      if (decode_utf8(text).length != text.size()) return TokenId{-1};
      if (const auto id = characters_.find(text)) return *id;
      characters_.add(std::string(text), next_id);
      return next_id++;
    };
    for (size_t i = 0; i < file.pieces.size(); ++i) {
      const auto& piece = file.pieces[i];
      if (piece.kind != Kind::normal && piece.kind != Kind::user_defined) continue;
      const std::string_view text = piece.text;
      const uint32_t first = decode_utf8(text).length;
      if (piece.kind == Kind::user_defined) user_ids_.add(piece.text, static_cast<TokenId>(i));
      for (size_t cut = first; cut < text.size(); cut += decode_utf8(text.substr(cut)).length) {
        const TokenId left = id_of(text.substr(0, cut)), right = id_of(text.substr(cut));
        if (left >= 0 && right >= 0) merges_.add(left, right, ranks[piece.score], static_cast<TokenId>(i));
      }
      note_joints(text);
    }
    std::sort(joints_.begin(), joints_.end());
    joints_.erase(std::unique(joints_.begin(), joints_.end()), joints_.end());
  }

  void encode(std::string_view text, EncodeMemory* given, std::vector<SpToken>& tokens) const override {
    std::unique_ptr<EncodeMemory> own;
    if (!given) own = make_memory(1 << 20);
    auto& memory = static_cast<WordMemory&>(given ? *given : *own);
    std::vector<TokenId> found;  // id and bytes of each token
    uint32_t at = 0;
    const auto flush = [&](size_t end) {
      const std::string_view segment = text.substr(at, end - at);
      if (segment.empty()) return;
      found.clear();
      memory.remember(segment, text.size() - at, false, found,
                      [&](std::vector<TokenId>& made) { encode_segment(segment, memory, made); });
      for (size_t i = 0; i < found.size(); i += 2) {
        const auto length = static_cast<uint32_t>(found[i + 1]);
        tokens.push_back({found[i], {at, at + length}});
        at += length;
      }
    };
    char32_t last = 0;
    for (size_t i = 0; i < text.size();) {
      const std::string_view rest = text.substr(i);
      if (const size_t length = normalizer_.user_defined(rest)) {
        i += length;
        last = 0;
        continue;
      }
      const Utf8Char c = decode_utf8(rest);
      if (c.point == 0x2581 && !joins(last)) flush(i);
      last = c.point;
      i += c.length;
    }
    flush(text.size());
  }

  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override {
    return std::make_unique<WordMemory>(bytes);
  }

 private:
  // Appends id and bytes of each token of a text that merges with nothing around it.
  void encode_segment(std::string_view text, WordMemory& memory, std::vector<TokenId>& made) const {
    std::vector<Symbol>& symbols = memory.symbols;
    symbols.clear();
    for (size_t i = 0; i < text.size();) {
      const std::string_view rest = text.substr(i);
      if (const size_t length = normalizer_.user_defined(rest)) {
        // Frozen: a negative id that takes part in no merge.
        symbols.push_back({-2 - *user_ids_.find(rest.substr(0, length)), static_cast<uint32_t>(length)});
        i += length;
        continue;
      }
      const uint32_t length = decode_utf8(rest).length;
      symbols.push_back({characters_.find(rest.substr(0, length)).value_or(-1), length});
      i += length;
    }
    merge_symbols(merges_, symbols, memory.scratch);
    for (const Symbol& symbol : symbols) {
      const TokenId id = symbol.id < -1 ? -2 - symbol.id : symbol.id;
      made.push_back(id < 0 || id >= named_ ? unknown_ : id);
      made.push_back(static_cast<TokenId>(symbol.length));
    }
    memory.release_scratch();
  }

  // Remembers the characters that stand before a ▁ inside some piece. Before any other ▁ nothing merges, so
  // that text can be cut there.
  void note_joints(std::string_view text) {
    char32_t last = 0;
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text.substr(i));
      if (c.point == 0x2581 && i > 0) joints_.push_back(last);
      last = c.point;
      i += c.length;
    }
  }
  bool joins(char32_t last) const { return std::binary_search(joints_.begin(), joints_.end(), last); }

  const SpNormalizer& normalizer_;
  TokenId unknown_, named_;
  Vocabulary characters_, user_ids_;
  MergeTable merges_;
  std::vector<char32_t> joints_;
};

// The path with the highest sum of scores, in single precision as SentencePiece keeps it.
class SpUnigram : public SpModel {
 public:
  SpUnigram(const SentencePieceFile& file, TokenId unknown) : unknown_(unknown) {
    float least = std::numeric_limits<float>::max(),
          most = std::numeric_limits<float>::min();  // SentencePiece's: just above 0
    std::vector<std::pair<std::string_view, int32_t>> texts;
    for (size_t i = 0; i < file.pieces.size(); ++i) {
      const auto& piece = file.pieces[i];
      scores_.push_back(piece.score);
      user_defined_.push_back(piece.kind == Kind::user_defined);
      if (piece.kind == Kind::normal || piece.kind == Kind::user_defined)
        texts.emplace_back(piece.text, static_cast<int32_t>(i));
      if (piece.kind == Kind::normal) {
        least = std::min(least, piece.score);
        most = std::max(most, piece.score);
      }
    }
    trie_ = ByteTrie(std::move(texts));
    unknown_score_ = least - 10.0f;
    most_ = most;
  }

  void encode(std::string_view text, EncodeMemory*, std::vector<SpToken>& tokens) const override {
    struct Best {
      TokenId id = -1;
      float score = 0;
      int64_t begin = -1;
    };
    std::vector<Best> best(text.size() + 1);
    for (size_t begin = 0; begin < text.size();) {
      const float here = best[begin].score;
      const uint32_t length = decode_utf8(text.substr(begin)).length;
      bool single = false;
      const auto offer = [&](size_t end, float score, TokenId id) {
        Best& target = best[end];
        if (target.begin < 0 || score > target.score) target = {id, score, static_cast<int64_t>(begin)};
      };
      trie_.prefixes(text.substr(begin), [&](size_t size, int32_t id) {
        const double score =
            user_defined_[id] ? static_cast<double>(size * most_) - 0.1 : double{scores_[id]};
        offer(begin + size, score + here, id);
        single |= size == length;
      });
      if (!single) {
        const float score = unknown_score_ + here;
        offer(begin + length, score, unknown_);
      }
      begin += length;
    }
    const size_t before = tokens.size();
    for (size_t end = text.size(); end > 0; end = static_cast<size_t>(best[end].begin))
      tokens.push_back({best[end].id, {static_cast<uint32_t>(best[end].begin), static_cast<uint32_t>(end)}});
    std::reverse(tokens.begin() + static_cast<ptrdiff_t>(before), tokens.end());
  }

 private:
  ByteTrie trie_;
  std::vector<float> scores_;
  std::vector<bool> user_defined_;
  TokenId unknown_;
  float unknown_score_ = 0, most_ = 0;
};

}  // namespace

std::unique_ptr<const SpModel> make_sp_model(const SentencePieceFile& file, const SpNormalizer& normalizer,
                                             const Vocabulary& pieces, TokenId unknown,
                                             std::string_view origin) {
  using Algorithm = SentencePieceFile::Algorithm;
  if (file.algorithm == Algorithm::unigram) return std::make_unique<SpUnigram>(file, unknown);
  if (file.algorithm == Algorithm::bpe)
    return std::make_unique<SpBpe>(file, normalizer, pieces, unknown, origin);
  fail("{}: model type {} is not supported; unigram and BPE are", origin, static_cast<int>(file.algorithm));
}

}  // namespace megatron::tokenizers
