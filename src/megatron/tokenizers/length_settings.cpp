#include "megatron/tokenizers/length_settings.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

constexpr int64_t kMostTokens = 1 << 20;  // more is a malformed file rather than a model

size_t length_of(int64_t value, std::string_view name) {
  require(value >= 0 && value <= kMostTokens, "tokenizer.json: {} is {}, expected 0 to {}", name, value,
          kMostTokens);
  return static_cast<size_t>(value);
}

template <class T>
void keep(std::vector<T>& values, size_t count, bool last) {
  if (values.size() <= count) return;
  if (last)
    values.erase(values.begin(), values.end() - static_cast<ptrdiff_t>(count));
  else
    values.erase(values.begin() + static_cast<ptrdiff_t>(count), values.end());
}

}  // namespace

LengthSettings::LengthSettings(const Json& truncation, const Json& padding) {
  if (!truncation.is_null()) {
    truncates_ = true;
    truncate_left_ = string_or(truncation, "direction", "Right") == "Left";
    max_length_ = static_cast<size_t>(std::max<int64_t>(0, truncation.at("max_length").as_int()));
  }
  if (!padding.is_null()) {
    pads_ = true;
    pad_left_ = string_or(padding, "direction", "Right") == "Left";
    const Json& strategy = padding.at("strategy");
    if (strategy.is_object())
      fixed_length_ = length_of(strategy.at("Fixed").as_int(), "padding to a fixed length");
    multiple_of_ = length_of(int_or(padding, "pad_to_multiple_of", 0), "pad_to_multiple_of");
    pad_id_ = static_cast<TokenId>(padding.at("pad_id").as_int());
    pad_piece_ = string_or(padding, "pad_token", "[PAD]");
  }
}

void LengthSettings::truncate(Encoding& encoding, size_t added) const {
  if (!truncates_ || added > max_length_) return;  // the package's difference wraps around
  const size_t count = max_length_ - added;
  keep(encoding.ids, count, truncate_left_);
  keep(encoding.pieces, count, truncate_left_);
  keep(encoding.offsets, count, truncate_left_);
}

void LengthSettings::pad(Encoding& encoding) const {
  if (!pads_) return;
  size_t length = fixed_length_ > 0 ? fixed_length_ : encoding.ids.size();
  if (multiple_of_ > 0) length = (length + multiple_of_ - 1) / multiple_of_ * multiple_of_;
  if (length <= encoding.ids.size()) return;
  const size_t more = length - encoding.ids.size();
  const bool places = encoding.pieces.size() == encoding.ids.size();
  encoding.ids.insert(pad_left_ ? encoding.ids.begin() : encoding.ids.end(), more, pad_id_);
  if (!places) return;
  encoding.pieces.insert(pad_left_ ? encoding.pieces.begin() : encoding.pieces.end(), more, pad_piece_);
  encoding.offsets.insert(pad_left_ ? encoding.offsets.begin() : encoding.offsets.end(), more, CharRange{});
}

}  // namespace megatron::tokenizers
