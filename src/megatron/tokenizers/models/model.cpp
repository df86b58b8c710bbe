#include "megatron/tokenizers/models/model.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/bpe.h"
#include "megatron/tokenizers/models/unigram.h"
#include "megatron/tokenizers/models/word_piece.h"
#include "megatron/tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

// Files of the first versions leave the type out.
std::string model_type(const Json& settings) {
  std::string type = string_or(settings, "type", "");
  if (!type.empty()) return type;
  if (settings.contains("merges")) return "BPE";
  if (settings.contains("unk_id")) return "Unigram";
  return settings.contains("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

Vocabulary read_vocabulary(const Json& pieces) {
  Vocabulary vocabulary;
  vocabulary.reserve(pieces.as_object().size());
  for (const auto& [piece, id] : pieces.as_object()) {
    const int64_t value = id.as_int();
    require(value >= 0 && value <= INT32_MAX, "vocabulary: piece '{}' has id {}", piece, value);
    vocabulary.add(piece, static_cast<TokenId>(value));
  }
  return vocabulary;
}

std::unique_ptr<const Model> make_model(TokenizerJson& file) {
  const Json& settings = file.settings.at("model");
  if (file.bpe)
    return std::make_unique<BpeModel>(settings, std::move(file.bpe->vocabulary), file.bpe->merges);
  const std::string type = model_type(settings);
  if (type == "BPE") return std::make_unique<BpeModel>(settings);
  if (type == "WordPiece") return std::make_unique<WordPieceModel>(settings);
  if (type == "Unigram") return std::make_unique<UnigramModel>(settings);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(settings);
  fail("tokenizer.json: model '{}' is not known; BPE, WordPiece, Unigram and WordLevel are", type);
}

}  // namespace megatron::tokenizers
