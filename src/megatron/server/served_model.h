#pragma once

#include <string>
#include <vector>

#include "megatron/inference/constraint/compile.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/template_folder.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// What the server knows of the model behind it.
struct ServedModel {
  std::string name;
  Tokenizer tokenizer;
  chat::ChatTemplates templates;
  std::vector<int64_t> end_tokens;
  double repetition_penalty = 1;  // where a request says nothing
  int64_t max_length = 0;         // tokens of prompt and answer together
  int64_t vocab_size = 0;         // logits
  SharedVocabulary vocabulary = nullptr;
  int64_t created = 0;  // seconds since 1970

  // Fills what follows from the rest: the vocabulary of constraints.
  void prepare();
  // A token as log-probabilities name it: its text, or "bytes:\xE4" where it is no whole character.
  std::string token_text(int64_t token) const;
  // Its bytes; of special tokens those of their name.
  std::string token_bytes(int64_t token) const;
  // The ids of a text, as the engine takes them.
  std::vector<int64_t> encode(const std::string& text, bool add_special_tokens) const;
};

}  // namespace megatron
