#include "megatron/tokenizers/bert_characters.h"

#include <algorithm>

#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {

void BertMemory::learn(char32_t point, BertCharacter& character) const {
  using Kind = BertCharacter::Kind;
  character.kind = Kind::depends;
  std::string written;
  append_utf8(written, point);
  AlignedText text(written, 0, false);
  if (normalizer_) normalizer_->apply(text);
  std::string_view rest = text.text();
  const auto is_space = [](char32_t c) { return properties_of(c).space(); };
  bool space_before = false, space_behind = false;
  size_t points = 0;
  bool punctuation = false;
  size_t begin = 0, end = 0;  // of what is no space
  for (size_t i = 0; i < rest.size();) {
    const Utf8Char c = decode_utf8(rest.substr(i));
    if (is_space(c.point)) {
      (points == 0 ? space_before : space_behind) = true;
    } else {
      if (space_behind || (orders_marks_ && combining_class(c.point) != 0)) return;
      if (points++ == 0) begin = i;
      end = i + c.length;
      punctuation |= properties_of(c.point).bert_punctuation();
    }
    i += c.length;
  }
  if (end - begin > sizeof(character.bytes)) return;
  std::copy(rest.begin() + begin, rest.begin() + end, character.bytes);
  character.size = static_cast<uint8_t>(end - begin);
  if (points == 0)
    character.kind = space_before ? Kind::space : Kind::joins;
  else if (points == 1 && (punctuation || (space_before && space_behind)))
    character.kind = Kind::apart;
  else if (!punctuation && !space_before && !space_behind)
    character.kind = Kind::joins;
}

}  // namespace megatron::tokenizers
