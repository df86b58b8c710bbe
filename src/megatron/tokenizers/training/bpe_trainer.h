#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/word_scanner.h"

namespace megatron {

struct BpeTrainerOptions {
  int64_t vocab_size = 30000;               // special tokens and the 256 bytes included
  int64_t min_frequency = 0;                // a pair that is rarer is not merged
  std::vector<std::string> special_tokens;  // the first ids
  std::string pattern = "gpt2";             // gpt2, llama3, qwen2 or o200k
};

// A trained byte-level vocabulary.
struct TrainedBpe {
  std::vector<std::string> pieces;                          // by id, in byte-level characters
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<std::string> special_tokens;
  std::string pattern;

  // A tokenizer.json that Hugging Face's tokenizers load.
  Json to_json() const;
  // The same as GPT-2's two files.
  Json vocab_json() const;
  std::string merges_text() const;
};

// Learns byte-level BPE: the most frequent pair becomes a token, again and again; of equally frequent pairs
// the one with the lowest ids. The result depends on the texts alone and is that of Hugging Face's
// BpeTrainer.
class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of a text; texts are apart from each other.
  void add(std::string_view text);
  size_t distinct_words() const { return counts_.size(); }
  TrainedBpe train() const;

 private:
  BpeTrainerOptions options_;
  tokenizers::WordRules rules_;
  std::unordered_map<std::string, int64_t, tokenizers::TextHash, std::equal_to<>> counts_;
};

}  // namespace megatron
