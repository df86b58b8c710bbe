#pragma once

#include <functional>
#include <optional>

#include "megatron/datasets/sft/sft_tokens.h"
#include "megatron/tokenizers/chat/template_folder.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

struct SftEncoderOptions {
  SftFormat format = SftFormat::automatic;
  LossMode loss = LossMode::assistant;
  std::string chat_template;                     // Jinja; "" refuses conversations
  Json special_tokens = Json::object();          // that the template may name
  std::string prompt_form = "{input} {output}";  // of prompts with completions, which end with eos
  int64_t max_length = 0;                        // tokens, with the last label; 0: any
  // Told of each row that has no token to learn, by whichever thread reads it.
  std::function<void(const std::string& origin)> on_nothing_learned;
};

// A row of an SFT file as tokens; a ConfigError names `origin`. Safe to share between threads.
using SftEncoder = std::function<SftTokens(const Json& row, const std::string& origin)>;
SftEncoder make_sft_encoder(Tokenizer tokenizer, SftEncoderOptions options);

// Tokens with the bytes of the text that each stands for.
TokensWithOffsets encode_with_byte_offsets(const Tokenizer& tokenizer, std::string_view text);

}  // namespace megatron
