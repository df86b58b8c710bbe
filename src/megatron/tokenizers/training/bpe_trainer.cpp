#include "megatron/tokenizers/training/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/byte_characters.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

using namespace tokenizers;

std::string_view split_pattern(std::string_view name) {
  if (name == "gpt2") return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  if (name == "llama3")
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
           R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (name == "qwen2")
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
           R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (name == "o200k")
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
           R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  throw ConfigError(fmt::format(
      "tokenizer train: pattern '{}' is not known (expected gpt2, llama3, qwen2 or o200k)", name));
}

using Pair = uint64_t;  // left id above right id: compared as the two are
Pair pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

// A pair that may be merged next, with the words in which it stands.
struct Candidate {
  Pair pair;
  int64_t count;
  std::vector<uint32_t> words;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

struct Word {
  std::vector<uint32_t> ids;
  int64_t count;
};

// Replaces a pair in a word and calls change(pair, ±1) for the pairs that go and come beside it.
template <class Change>
void merge_in(Word& word, Pair pair, uint32_t id, Change change) {
  const auto left = static_cast<uint32_t>(pair >> 32), right = static_cast<uint32_t>(pair);
  std::vector<uint32_t>& ids = word.ids;
  size_t out = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != left || i + 1 == ids.size() || ids[i + 1] != right) {
      ids[out++] = ids[i];
      continue;
    }
    if (out > 0) {
      change(pair_of(ids[out - 1], left), -1);
      change(pair_of(ids[out - 1], id), 1);
    }
    if (i + 2 < ids.size()) {
      change(pair_of(right, ids[i + 2]), -1);
      change(pair_of(id, ids[i + 2]), 1);
    }
    ids[out++] = id;
    ++i;
  }
  ids.resize(out);
}

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainerOptions options)
    : options_(std::move(options)), rules_(*WordRules::of(split_pattern(options_.pattern))) {
  const auto least = static_cast<int64_t>(options_.special_tokens.size()) + 256;
  if (options_.vocab_size < least)
    throw ConfigError(
        fmt::format("tokenizer train: --vocab-size is {}, expected {} or more (256 bytes, {} special tokens)",
                    options_.vocab_size, least, options_.special_tokens.size()));
}

void BpeTrainer::add(std::string_view text) {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = to_utf8_lossy(text);
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(rules_, text.data(), at, text.size());
    const std::string_view word = text.substr(at, end - at);
    if (const auto found = counts_.find(word); found != counts_.end())
      ++found->second;
    else
      counts_.emplace(word, 1);
    at = end;
  }
}

TrainedBpe BpeTrainer::train() const {
  TrainedBpe result{
      .pieces = {}, .merges = {}, .special_tokens = options_.special_tokens, .pattern = options_.pattern};
  std::unordered_map<std::string, uint32_t> id_of;
  const auto add_piece = [&](std::string piece) {
    const auto [entry, added] =
        id_of.try_emplace(std::move(piece), static_cast<uint32_t>(result.pieces.size()));
    if (added) result.pieces.push_back(entry->first);
    return entry->second;
  };
  for (const std::string& token : options_.special_tokens) add_piece(token);
  // Bytes have ids in the order of the characters that stand for them.
  uint32_t byte_ids[256];
  for (char32_t point = 0; point < 324; ++point)
    if (const auto byte = byte_of_character(point))
      byte_ids[*byte] = add_piece(std::string(byte_character(*byte)));

  std::vector<const std::pair<const std::string, int64_t>*> sorted;  // the same order on every machine
  for (const auto& entry : counts_) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  std::vector<Word> words;
  words.reserve(sorted.size());
  std::unordered_map<Pair, int64_t> pair_counts;
  std::unordered_map<Pair, std::vector<uint32_t>> places;
  for (const auto* entry : sorted) {
    Word word{{}, entry->second};
    for (char c : entry->first) word.ids.push_back(byte_ids[static_cast<unsigned char>(c)]);
    const auto index = static_cast<uint32_t>(words.size());
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      const Pair pair = pair_of(word.ids[i], word.ids[i + 1]);
      pair_counts[pair] += word.count;
      auto& list = places[pair];
      if (list.empty() || list.back() != index) list.push_back(index);
    }
    words.push_back(std::move(word));
  }

  std::priority_queue<Candidate> queue;
  const auto enqueue = [&] {
    for (auto& [pair, list] : places)
      if (const int64_t count = pair_counts[pair]; count > 0) queue.push({pair, count, std::move(list)});
    places.clear();
  };
  enqueue();
  while (static_cast<int64_t>(result.pieces.size()) < options_.vocab_size && !queue.empty()) {
    Candidate top = std::move(const_cast<Candidate&>(queue.top()));  // popped at once
    queue.pop();
    if (const int64_t count = pair_counts[top.pair]; count != top.count) {
      top.count = count;
      queue.push(std::move(top));
      continue;
    }
    if (top.count < 1 || top.count < options_.min_frequency) break;
    const std::string left = result.pieces[top.pair >> 32],
                      right = result.pieces[static_cast<uint32_t>(top.pair)];
    const uint32_t id = add_piece(left + right);
    result.merges.emplace_back(left, right);
    for (uint32_t index : top.words)
      merge_in(words[index], top.pair, id, [&](Pair pair, int change) {
        pair_counts[pair] += change * words[index].count;
        if (change < 0) return;
        auto& list = places[pair];
        if (list.empty() || list.back() != index) list.push_back(index);
      });
    enqueue();
  }
  return result;
}

Json TrainedBpe::vocab_json() const {
  Json::Object vocabulary;
  for (size_t id = 0; id < pieces.size(); ++id) vocabulary.emplace_back(pieces[id], static_cast<int64_t>(id));
  return vocabulary;
}

std::string TrainedBpe::merges_text() const {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += left + " " + right + "\n";
  return text;
}

Json TrainedBpe::to_json() const {
  Json::Array added, pairs;
  for (size_t id = 0; id < special_tokens.size(); ++id)
    added.push_back(Json::Object{{"id", static_cast<int64_t>(id)},
                                 {"content", special_tokens[id]},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
  for (const auto& [left, right] : merges) pairs.push_back(Json::Array{left, right});
  const bool gpt2 = pattern == "gpt2";
  const auto byte_level = [](bool use_regex) {
    return Json(Json::Object{{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", false},
                             {"use_regex", use_regex}});
  };
  Json pre_tokenizer = byte_level(true);
  if (!gpt2) {
    Json split = Json::Object{{"type", "Split"},
                              {"pattern", Json::Object{{"Regex", std::string(split_pattern(pattern))}}},
                              {"behavior", "Isolated"},
                              {"invert", false}};
    pre_tokenizer = Json::Object{{"type", "Sequence"},
                                 {"pretokenizers", Json::Array{std::move(split), byte_level(false)}}};
  }
  return Json::Object{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", std::move(added)},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", std::move(pre_tokenizer)},
                      {"post_processor", byte_level(true)},
                      {"decoder", byte_level(true)},
                      {"model", Json::Object{{"type", "BPE"},
                                             {"dropout", nullptr},
                                             {"unk_token", nullptr},
                                             {"continuing_subword_prefix", nullptr},
                                             {"end_of_word_suffix", nullptr},
                                             {"fuse_unk", false},
                                             {"byte_fallback", false},
                                             {"ignore_merges", false},
                                             {"vocab", vocab_json()},
                                             {"merges", std::move(pairs)}}}};
}

}  // namespace megatron
