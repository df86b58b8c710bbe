#include "megatron/tokenizers/models/bpe.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {

namespace {

// [["a", "b"], …], or the older form: two pieces with a space between them.
std::vector<MergeNames> read_merges(const Json::Array& merges) {
  std::vector<MergeNames> names;
  names.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const auto pair = split_merge(merge.as_string());
      require(pair.has_value(), "tokenizer.json: merge {} is '{}', expected two pieces", names.size(),
              merge.as_string());
      names.push_back(*pair);
    } else {
      require(merge.size() == 2, "tokenizer.json: merge {} has {} pieces, expected 2", names.size(),
              merge.size());
      names.push_back({merge[0].as_string(), merge[1].as_string()});
    }
  }
  return names;
}

}  // namespace

BpeModel::BpeModel(const Json& settings)
    : BpeModel(settings, read_vocabulary(settings.at("vocab")),
               read_merges(settings.at("merges").as_array())) {}

BpeModel::BpeModel(const Json& settings, Vocabulary vocabulary, std::span<const MergeNames> merges)
    : Model(std::move(vocabulary)) {
  if (const Json* dropout = settings.find("dropout"); dropout && !dropout->is_null())
    require(dropout->as_double() == 0, "tokenizer.json: BPE has dropout {}, expected none; set it to null",
            dropout->as_double());
  options_.fuse_unknown = bool_or(settings, "fuse_unk", false);
  options_.byte_fallback = bool_or(settings, "byte_fallback", false);
  options_.ignore_merges = bool_or(settings, "ignore_merges", false);
  options_.continuing_prefix = string_or(settings, "continuing_subword_prefix", "");
  options_.end_suffix = string_or(settings, "end_of_word_suffix", "");
  if (const Json* unknown = settings.find("unk_token"); unknown && !unknown->is_null()) {
    options_.unknown = vocabulary_.find(unknown->as_string());
    require(options_.unknown.has_value(), "tokenizer.json: unk_token '{}' is no piece of the vocabulary",
            unknown->as_string());
  }
  merges_ =
      std::make_shared<const MergeTable>(make_merge_table(merges, vocabulary_, options_.continuing_prefix));
}

bool BpeModel::byte_symbols(std::string_view text, std::vector<Symbol>& symbols) const {
  const size_t before = symbols.size();
  for (char c : text) {
    const auto id = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
    if (!id) {
      symbols.resize(before);
      return false;
    }
    symbols.push_back({*id, 1});
  }
  return true;
}

void BpeModel::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  std::optional<Symbol> unknown;  // held back, to be joined with the next
  const auto flush = [&] {
    if (unknown) symbols.push_back(*unknown);
    unknown.reset();
  };
  std::string decorated;
  for (size_t i = 0; i < word.size();) {
    const uint32_t length = decode_utf8(word.substr(i)).length;
    std::string_view piece = word.substr(i, length);
    const bool first = i == 0, last = i + length == word.size();
    if ((!first && !options_.continuing_prefix.empty()) || (last && !options_.end_suffix.empty())) {
      decorated = first ? "" : options_.continuing_prefix;
      decorated += piece;
      if (last) decorated += options_.end_suffix;
      piece = decorated;
    }
    i += length;
    if (const auto id = vocabulary_.find(piece)) {
      flush();
      symbols.push_back({*id, length});
    } else if (options_.byte_fallback && byte_symbols(piece, symbols)) {
    } else if (options_.unknown) {
      if (unknown && options_.fuse_unknown) {
        unknown->length += length;
      } else {
        flush();
        unknown = Symbol{*options_.unknown, length};
      }
    }
  }
  flush();
}

void BpeModel::tokenize(std::string_view word, std::vector<WordToken>& tokens) const {
  if (word.empty()) return;
  if (options_.ignore_merges)
    if (const auto id = vocabulary_.find(word)) {
      tokens.push_back({*id, {0, static_cast<uint32_t>(word.size())}});
      return;
    }
  std::vector<Symbol> symbols;
  MergeScratch scratch;
  first_symbols(word, symbols);
  merge_symbols(*merges_, symbols, scratch);
  uint32_t at = 0;
  for (const Symbol& symbol : symbols) {
    tokens.push_back({symbol.id, {at, at + symbol.length}});
    at += symbol.length;
  }
}

}  // namespace megatron::tokenizers
