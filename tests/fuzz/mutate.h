#pragma once

#include <string>
#include <vector>

#include "megatron/tensor/philox.h"

namespace megatron::testing {

// Spoils texts in ways that depend on the seed alone: bytes are flipped, runs are deleted, repeated or moved,
// pieces of other texts and words that parsers care about are put in.
class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> texts, std::vector<std::string> words)
      : key_{seed, 0}, texts_(std::move(texts)), words_(std::move(words)) {}

  std::string next() {
    std::string text = texts_[below(texts_.size())];
    for (size_t changes = 1 + below(8); changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t bound) {
    auto random = Philox::at(key_, counter_++);
    return bound ? ((uint64_t{random.word[0]} << 32) | random.word[1]) % bound : 0;
  }

  void change(std::string& text) {
    size_t place = below(text.size() + 1), length = below(std::min<size_t>(text.size() - place + 1, 40));
    switch (below(7)) {
      case 0:
        if (place < text.size()) text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        break;
      case 1:
        text.insert(place, 1, static_cast<char>(below(256)));
        break;
      case 2:
        text.erase(place, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(place, length));
        break;
      case 4:
        text.insert(place, words_[below(words_.size())]);
        break;
      case 5: {
        const std::string& other = texts_[below(texts_.size())];
        text.insert(place, other.substr(below(other.size() + 1), below(60)));
        break;
      }
      default:
        text.resize(place);
    }
  }

  RngKey key_;
  uint64_t counter_ = 0;
  std::vector<std::string> texts_, words_;
};

}  // namespace megatron::testing
