#include "megatron/tokenizers/models/bpe.h"

#include <exception>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {

namespace {

struct NamedMerge {
  TokenId left, right, whole;
};

// The ids of one merge; an Error where one of its pieces or what they become is no piece.
NamedMerge find_merge(const Vocabulary& vocabulary, const Json& merge, size_t rank,
                      std::string_view continuing_prefix, std::string& whole) {
  std::string_view left, right;
  if (merge.is_string()) {  // the older form: two pieces with a space between them
    const std::string_view text = merge.as_string();
    const size_t space = text.find(' ');
    require(space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos,
            "tokenizer.json: merge {} is '{}', expected two pieces", rank, text);
    left = text.substr(0, space);
    right = text.substr(space + 1);
  } else {
    require(merge.size() == 2, "tokenizer.json: merge {} has {} pieces, expected 2", rank, merge.size());
    left = merge[0].as_string();
    right = merge[1].as_string();
  }
  const auto a = vocabulary.find(left), b = vocabulary.find(right);
  require(a && b, "BPE: merge {} ('{}' '{}') names a piece that the vocabulary lacks", rank, left, right);
  whole = left;
  whole += right.size() >= continuing_prefix.size() ? right.substr(continuing_prefix.size()) : right;
  const auto id = vocabulary.find(whole);
  require(id.has_value(), "BPE: merge {} makes '{}', which the vocabulary lacks", rank, whole);
  return {*a, *b, *id};
}

// Pieces are looked up by two threads, which is most of the time that loading takes.
MergeTable read_merges(const Json::Array& merges, const Vocabulary& vocabulary,
                       std::string_view continuing_prefix) {
  std::vector<NamedMerge> found(merges.size());
  const auto find = [&](size_t begin, size_t end) {
    std::string whole;
    for (size_t i = begin; i < end; ++i)
      found[i] = find_merge(vocabulary, merges[i], i, continuing_prefix, whole);
  };
  const size_t half = merges.size() < 10000 ? merges.size() : merges.size() / 2;
  std::exception_ptr fault;
  {
    std::jthread helper;
    if (half < merges.size())
      helper = std::jthread([&] {
        try {
          find(half, merges.size());
        } catch (...) {
          fault = std::current_exception();
        }
      });
    find(0, half);  // the first fault is told, as it comes first
  }
  if (fault) std::rethrow_exception(fault);
  MergeTable table;
  table.reserve(merges.size());
  for (size_t i = 0; i < found.size(); ++i)
    table.add(found[i].left, found[i].right, static_cast<uint32_t>(i), found[i].whole);
  return table;
}

}  // namespace

BpeModel::BpeModel(const Json& settings) : Model(read_vocabulary(settings.at("vocab"))) {
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
  merges_ = std::make_shared<const MergeTable>(
      read_merges(settings.at("merges").as_array(), vocabulary_, options_.continuing_prefix));
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
