#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/base/json.h"

namespace megatron::tokenizers {

// Turns pieces back into text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Pieces as this step leaves them; joined, those of the last step are the text.
  virtual std::vector<std::string> apply(std::vector<std::string> pieces) const = 0;
  // Whether it is the step that joins the bytes of byte-level pieces, and nothing else.
  virtual bool joins_bytes() const { return false; }
};

// From the "decoder" of a tokenizer.json; null for null. An Error names what is not known.
std::unique_ptr<const Decoder> make_decoder(const Json& settings);

}  // namespace megatron::tokenizers
