#include <vector>

#include "megatron/tokenizers/word_scanner_inl.h"

namespace megatron::tokenizers {
namespace {

uint8_t classes_from(CharProperties p) {
  if (p.space()) return kSpace;
  if (p.number()) return kNumber;
  if (p.mark()) return kMark;
  switch (p.category()) {
    case Category::Lu:
    case Category::Lt:
      return kUpper;
    case Category::Ll:
      return kLower;
    case Category::Lm:
    case Category::Lo:
      return kOtherLetter;
    default:
      return kSymbol;
  }
}

// One byte a point: the hot path of text beyond ASCII is this one load.
const std::vector<uint8_t>& all_classes() {
  static const std::vector<uint8_t> classes = [] {
    std::vector<uint8_t> all(0x110000);
    for (char32_t point = 0; point < all.size(); ++point)
      all[point] = point < 128 ? kAsciiClasses[point] : classes_from(properties_of(point));
    return all;
  }();
  return classes;
}

}  // namespace

const uint8_t* character_classes() { return all_classes().data(); }

}  // namespace megatron::tokenizers
