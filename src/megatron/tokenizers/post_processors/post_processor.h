#pragma once

#include <memory>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// A post-processor as data: what is put around the tokens of a text, and whether their places leave white
// space out.
class PostProcessor {
 public:
  PostProcessor() = default;
  // From the "post_processor" of a tokenizer.json. An Error names what is not known.
  explicit PostProcessor(const Json& settings);

  struct Added {
    TokenId id;
    std::string piece;
  };
  const std::vector<Added>& before() const { return before_; }
  const std::vector<Added>& behind() const { return behind_; }
  size_t added_tokens() const { return before_.size() + behind_.size(); }

  // Applies all of it; without special tokens only to places.
  void apply(Encoding& encoding, bool add_special_tokens) const;

 private:
  void add(const Json& settings);
  void add_template(const Json& settings);

  std::vector<Added> before_, behind_;
  bool trim_offsets_ = false, prefix_space_ = false;
};

}  // namespace megatron::tokenizers
