#pragma once

#include <memory>
#include <string_view>

#include "megatron/base/json.h"
#include "megatron/tokenizers/aligned_text.h"

namespace megatron::tokenizers {

// Changes text before it is cut into words.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(AlignedText& text) const = 0;
  // Whether apply() would leave the text as it is, where that is cheap to tell.
  virtual bool leaves(std::string_view) const { return false; }
};

// From the "normalizer" of a tokenizer.json; null for null. An Error names what is not known.
std::unique_ptr<const Normalizer> make_normalizer(const Json& settings);

}  // namespace megatron::tokenizers
