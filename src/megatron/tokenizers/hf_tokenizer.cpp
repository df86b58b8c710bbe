#include "megatron/tokenizers/hf_tokenizer.h"

#include <algorithm>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/tokenizers/bert_characters.h"
#include "megatron/tokenizers/models/bpe.h"
#include "megatron/tokenizers/models/byte_characters.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/utf8.h"
#include "megatron/tokenizers/word_memory.h"

namespace megatron::tokenizers {
namespace {

const Json& setting(const Json& settings, std::string_view key) {
  static const Json null;
  const Json* value = settings.find(key);
  return value ? *value : null;
}

// The fast path for a byte-level model; null where it cannot serve it.
std::unique_ptr<const ByteBpe> make_byte_bpe(const Json& settings, const Model& model) {
  const auto* bpe = dynamic_cast<const BpeModel*>(&model);
  const auto rules = byte_level_rules(setting(settings, "pre_tokenizer"));
  if (!bpe || !rules || !bpe->options().continuing_prefix.empty() || !bpe->options().end_suffix.empty())
    return nullptr;
  const Vocabulary& vocabulary = bpe->vocabulary();
  BytePieces pieces(vocabulary.count());
  size_t single = 0;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (!vocabulary.has(id)) continue;
    const std::string_view piece = vocabulary.piece(id);
    if (!vocabulary.one_to_one() && vocabulary.find(piece) != id) continue;
    const size_t size = pieces.add_characters(piece, id);
    single += size == 1;
  }
  if (single != 256) return nullptr;
  return std::make_unique<ByteBpe>(rules->words, rules->prefix_space, pieces, bpe->merges(),
                                   bpe->options().ignore_merges);
}

bool one_of(const Json& settings, std::initializer_list<std::string_view> types) {
  const std::string& type = settings.at("type").as_string();
  return std::find(types.begin(), types.end(), type) != types.end();
}

// Whether a normalizer changes characters with regard to none beyond a space.
bool is_local(const Json& normalizer) {
  if (normalizer.is_null()) return true;
  if (!one_of(normalizer, {"Sequence"}))
    return one_of(normalizer, {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"});
  const Json::Array& parts = normalizer.at("normalizers").as_array();
  return std::all_of(parts.begin(), parts.end(), is_local);
}

// Whether a pre-tokenizer does another thing at the front of a text. What a normalizer drops there counts.
bool knows_the_front(const Json& pre_tokenizer) {
  if (pre_tokenizer.is_null()) return false;
  if (!one_of(pre_tokenizer, {"Sequence"}))
    return one_of(pre_tokenizer, {"Metaspace"}) &&
           string_or(pre_tokenizer, "prepend_scheme", "always") == "first";
  const Json::Array& parts = pre_tokenizer.at("pretokenizers").as_array();
  return std::any_of(parts.begin(), parts.end(), knows_the_front);
}

bool drops_spaces(const Json& pre_tokenizer) {
  return !pre_tokenizer.is_null() &&
         one_of(pre_tokenizer, {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"});
}

// Whether words are what Bert makes of each character.
bool is_bert(const Json& normalizer, const Json& pre_tokenizer) {
  return !pre_tokenizer.is_null() && one_of(pre_tokenizer, {"BertPreTokenizer"}) &&
         (normalizer.is_null() || one_of(normalizer, {"BertNormalizer"}));
}

// Bytes to characters of a text, as Hugging Face counts places.
class CharacterCounter {
 public:
  explicit CharacterCounter(std::string_view text) {
    index_.reserve(text.size());
    uint32_t characters = 0;
    for (char c : text) {
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++characters;
      index_.push_back(characters - 1);
    }
    end_ = characters;
  }
  CharRange operator()(ByteRange range) const {
    const auto at = [&](uint32_t byte) { return byte < index_.size() ? index_[byte] : end_; };
    return {at(range.begin), at(range.end)};
  }

 private:
  std::vector<uint32_t> index_;
  uint32_t end_ = 0;
};

}  // namespace

HfTokenizer::HfTokenizer(TokenizerJson file, SpecialIds specials)
    : HfTokenizer(make_model(file), file.settings, specials) {}

HfTokenizer::HfTokenizer(std::unique_ptr<const Model> model, const Json& settings, SpecialIds specials)
    : normalizer_(make_normalizer(setting(settings, "normalizer"))),
      pre_tokenizer_(make_pre_tokenizer(setting(settings, "pre_tokenizer"))),
      model_(std::move(model)),
      post_processor_(setting(settings, "post_processor")),
      decoder_(make_decoder(setting(settings, "decoder"))),
      lengths_(setting(settings, "truncation"), setting(settings, "padding")),
      specials_(specials),
      byte_bpe_(make_byte_bpe(settings, *model_)) {
  if (const Json* added = settings.find("added_tokens"))
    added_ = AddedTokens(*added, model_->vocabulary(), normalizer_.get());
  asks_for_places_ = normalizer_ && knows_the_front(setting(settings, "pre_tokenizer"));
  by_chunks_ = !added_.any_normalized() && is_local(setting(settings, "normalizer")) &&
               drops_spaces(setting(settings, "pre_tokenizer"));
  is_bert_ = by_chunks_ && is_bert(setting(settings, "normalizer"), setting(settings, "pre_tokenizer"));
  if (const Json& normalizer = setting(settings, "normalizer"); is_bert_ && !normalizer.is_null())
    orders_marks_ = bool_or(normalizer, "strip_accents", normalizer.at("lowercase").as_bool());
}

// Words of a chunk without spaces, each remembered apart from the punctuation around it. False, and no ids,
// where they depend on how characters meet.
bool HfTokenizer::encode_bert_chunk(std::string_view chunk, BertMemory& memory,
                                    std::vector<TokenId>& ids) const {
  const size_t before = ids.size();
  const bool told = memory.words(chunk, [&](std::string_view word) {
    memory.remember(word, word.size(), true, ids, [&](std::vector<TokenId>& made) {
      memory.tokens.clear();
      model_->tokenize(word, memory.tokens);
      for (const WordToken& token : memory.tokens) made.push_back(token.id);
    });
  });
  if (!told) ids.resize(before);
  return told;
}

// Every place in it has 32 bits, also once it is longer than what was written.
AlignedText HfTokenizer::normalized(std::string_view written, uint32_t origin, bool tracked) const {
  AlignedText section(written, origin, tracked);
  if (normalizer_) normalizer_->apply(section);
  require(section.text().size() <= std::numeric_limits<uint32_t>::max(),
          "tokenizer: a text has {} bytes once it is normalized, expected at most {}; encode it in parts",
          section.text().size(), std::numeric_limits<uint32_t>::max());
  return section;
}

template <class Emit>
void HfTokenizer::run_section(AlignedText text, Emit emit) const {
  const auto size = static_cast<uint32_t>(text.text().size());
  if (size == 0) return;
  Section section{std::move(text), {{0, size}}};
  if (pre_tokenizer_) pre_tokenizer_->apply(section);
  std::vector<WordToken> tokens;
  for (const ByteRange& word : section.words) {
    tokens.clear();
    model_->tokenize(section.text.view(word), tokens);
    for (const WordToken& token : tokens) {
      const ByteRange range{word.begin + token.range.begin, word.begin + token.range.end};
      emit(token.id, section.text.tracked() ? section.text.original(range) : ByteRange{},
           model_->shows_text(token.id) ? section.text.view(range) : std::string_view());
    }
  }
}

template <class Emit>
void HfTokenizer::run(std::string_view text, bool tracked, Emit emit) const {
  for (const AddedTokens::Part& part : added_.split(text)) {
    const std::string_view written = text.substr(part.range.begin, part.range.end - part.range.begin);
    if (part.token) {
      emit(part.token->id, part.range, written);
      continue;
    }
    AlignedText section = normalized(written, part.range.begin, tracked);
    if (!added_.any_normalized()) {
      const auto size = static_cast<uint32_t>(section.text().size());
      run_section(asks_for_places_ ? section.slice({0, size}) : std::move(section), emit);
      continue;
    }
    for (const AddedTokens::Part& inner : added_.split_normalized(section.text())) {
      if (inner.token)
        emit(inner.token->id, tracked ? section.original(inner.range) : ByteRange{},
             section.view(inner.range));
      else
        run_section(section.slice(inner.range), emit);
    }
  }
}

// Ids alone: nothing tracks where they came from, and byte-level models take the fast path.
void HfTokenizer::encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
                         std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8_lossy(text);
  const auto put = [&](const std::vector<PostProcessor::Added>& tokens) {
    for (const auto& token : tokens) ids.push_back(token.id);
  };
  if (lengths_.idle()) {
    if (add_special_tokens) put(post_processor_.before());
    encode_text(text, memory, ids);
    if (add_special_tokens) put(post_processor_.behind());
    return;
  }
  const Encoding encoding = encode_with_offsets(text, add_special_tokens);
  ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
}

void HfTokenizer::encode_text(std::string_view text, EncodeMemory* memory, std::vector<TokenId>& ids) const {
  if (by_chunks_ && memory) return encode_chunks(text, memory, ids);
  if (!byte_bpe_)
    return run(text, asks_for_places_, [&](TokenId id, ByteRange, std::string_view) { ids.push_back(id); });
  for (const AddedTokens::Part& part : added_.split(text)) {
    const std::string_view written = text.substr(part.range.begin, part.range.end - part.range.begin);
    if (part.token) {
      ids.push_back(part.token->id);
    } else if (!added_.any_normalized() && (!normalizer_ || normalizer_->leaves(written))) {
      byte_bpe_->encode(written, memory, ids);
    } else {
      const AlignedText section = normalized(written, part.range.begin, false);
      for (const AddedTokens::Part& inner : added_.split_normalized(section.text())) {
        if (inner.token)
          ids.push_back(inner.token->id);
        else
          byte_bpe_->encode(section.view(inner.range), memory, ids);
      }
    }
  }
}

void HfTokenizer::encode_chunks(std::string_view text, EncodeMemory* memory,
                                std::vector<TokenId>& ids) const {
  auto& words = static_cast<WordMemory&>(*memory);
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  for (const AddedTokens::Part& part : added_.split(text)) {
    if (part.token) {
      ids.push_back(part.token->id);
      continue;
    }
    for (size_t at = part.range.begin; at < part.range.end;) {
      size_t end = at;
      while (end < part.range.end && !space(text[end])) ++end;
      const std::string_view chunk = text.substr(at, end - at);
      if (!chunk.empty())
        words.remember(chunk, text.size() - at, false, ids, [&](std::vector<TokenId>& made) {
          if (is_bert_ && encode_bert_chunk(chunk, static_cast<BertMemory&>(words), made)) return;
          run_section(normalized(chunk, static_cast<uint32_t>(at), false),
                      [&](TokenId id, ByteRange, std::string_view) { made.push_back(id); });
        });
      at = end + 1;
    }
  }
}

Encoding HfTokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8_lossy(text);
  const CharacterCounter characters(text);
  Encoding encoding;
  run(text, true, [&](TokenId id, ByteRange range, std::string_view written) {
    encoding.ids.push_back(id);
    encoding.pieces.emplace_back(written.empty() ? model_->vocabulary().piece(id) : written);
    encoding.offsets.push_back(characters(range));
  });
  lengths_.truncate(encoding, add_special_tokens ? post_processor_.added_tokens() : 0);
  post_processor_.apply(encoding, add_special_tokens);
  lengths_.pad(encoding);
  return encoding;
}

std::string HfTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::vector<std::string> pieces;
  for (TokenId id : ids) {
    const AddedToken* added = added_.by_id(id);
    if (!added && !model_->vocabulary().has(id)) continue;
    std::string piece = added ? added->shown : std::string(model_->vocabulary().piece(id));
    if (skip_special_tokens)
      if (const AddedToken* token = added_.by_content(piece); token && token->special) continue;
    pieces.push_back(std::move(piece));
  }
  std::string text;
  if (decoder_) {
    for (const std::string& part : decoder_->apply(std::move(pieces))) text += part;
  } else {
    for (size_t i = 0; i < pieces.size(); ++i) text += (i > 0 ? " " : "") + pieces[i];
  }
  return text;
}

std::unique_ptr<EncodeMemory> HfTokenizer::make_memory(size_t bytes) const {
  if (byte_bpe_) return byte_bpe_->make_memory(bytes);
  if (is_bert_) return std::make_unique<BertMemory>(bytes, normalizer_.get(), orders_marks_);
  return by_chunks_ ? std::make_unique<WordMemory>(bytes) : nullptr;
}

int64_t HfTokenizer::vocab_size() const { return std::max(model_->vocabulary().end_id(), added_.end_id()); }

std::optional<TokenId> HfTokenizer::id_of(std::string_view piece) const {
  if (const AddedToken* token = added_.by_content(piece)) return token->id;
  return model_->vocabulary().find(piece);
}

std::string HfTokenizer::piece_of(TokenId id) const {
  if (const AddedToken* token = added_.by_id(id)) return token->shown;
  return std::string(model_->vocabulary().piece(id));
}

bool HfTokenizer::is_special(TokenId id) const {
  const AddedToken* token = added_.by_id(id);
  return token && token->special;
}

}  // namespace megatron::tokenizers
