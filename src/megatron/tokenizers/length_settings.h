#pragma once

#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// The truncation and padding of a tokenizer.json, as they act on a single text.
class LengthSettings {
 public:
  LengthSettings() = default;
  // Either may be null.
  LengthSettings(const Json& truncation, const Json& padding);

  // Whether it never changes anything.
  bool idle() const { return !truncates_ && !pads_; }
  // Drops tokens so that `added` more fit. Pieces and offsets may be empty.
  void truncate(Encoding& encoding, size_t added) const;
  void pad(Encoding& encoding) const;

 private:
  bool truncates_ = false, truncate_left_ = false, pads_ = false, pad_left_ = false;
  size_t max_length_ = 0, fixed_length_ = 0, multiple_of_ = 0;
  TokenId pad_id_ = 0;
  std::string pad_piece_;
};

}  // namespace megatron::tokenizers
