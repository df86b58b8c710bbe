#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tokenizers/models/model.h"
#include "megatron/tokenizers/normalizers/normalizer.h"
#include "megatron/tokenizers/word_memory.h"
#include "megatron/tokenizers/zeroed_array.h"

namespace megatron::tokenizers {

// What Bert's normalizer and pre-tokenizer make of one character. Both look at a character alone but for
// marks that normalization puts in order, so that words are found in one pass over the text.
struct BertCharacter {
  enum class Kind : uint8_t {
    unknown,  // not asked for yet
    joins,    // its bytes, none where it is dropped, go on with the word
    apart,    // its bytes are a word
    space,    // ends a word
    depends,  // on its neighbours
  };
  char bytes[14];
  uint8_t size;
  Kind kind;
};

// The memory of a thread that encodes with such a tokenizer: words, and the characters that it has met.
class BertMemory : public WordMemory {
 public:
  // `normalizer` may be null; `orders_marks` says that it decomposes.
  BertMemory(size_t bytes, const Normalizer* normalizer, bool orders_marks)
      : WordMemory(bytes), normalizer_(normalizer), orders_marks_(orders_marks) {}

  // Calls tell(word) for each word of a text of valid UTF-8. False where words depend on how characters meet;
  // some may have been told then.
  template <class Tell>
  bool words(std::string_view text, Tell tell) {
    word_.clear();
    const auto end_word = [&] {
      if (!word_.empty()) tell(std::string_view(word_));
      word_.clear();
    };
    for (size_t i = 0; i < text.size();) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(text.data() + i);
      const unsigned char lead = bytes[0];
      char32_t point = lead;
      size_t length = 1;
      if (lead >= 0xF0) return false;
      if (lead >= 0xE0) {
        point = (lead & 15u) << 12 | (bytes[1] & 63u) << 6 | (bytes[2] & 63u);
        length = 3;
      } else if (lead >= 0x80) {
        point = (lead & 31u) << 6 | (bytes[1] & 63u);
        length = 2;
      }
      i += length;
      BertCharacter& character = characters_[point];
      if (character.kind == BertCharacter::Kind::unknown) learn(point, character);
      if (character.kind == BertCharacter::Kind::joins) {
        word_.append(character.bytes, character.size);
        continue;
      }
      if (character.kind == BertCharacter::Kind::depends) return false;
      end_word();
      if (character.kind == BertCharacter::Kind::apart)
        tell(std::string_view(character.bytes, character.size));
    }
    end_word();
    return true;
  }

  std::vector<WordToken> tokens;  // of the word that is being encoded

 private:
  void learn(char32_t point, BertCharacter& character) const;

  const Normalizer* normalizer_;
  bool orders_marks_;
  ZeroedArray<BertCharacter> characters_ = ZeroedArray<BertCharacter>(0x10000);  // planes above are rare
  std::string word_;
};

}  // namespace megatron::tokenizers
