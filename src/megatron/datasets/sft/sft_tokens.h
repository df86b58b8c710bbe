#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "megatron/datasets/sft/learned_text.h"

namespace megatron {

// Tokens of a text and the bytes that each stands for; a token without bytes of its own has an empty span.
struct TokensWithOffsets {
  std::vector<int64_t> ids;
  std::vector<chat::TextSpan> offsets;
};
using EncodeWithOffsets = std::function<TokensWithOffsets(std::string_view)>;  // adds no special tokens

struct SftTokenOptions {
  std::optional<int64_t> bos,
      eos;  // put before the first and behind the last token; eos is learned as part of an answer
  int64_t max_length = 0;            // 0: any
  bool cut_prompt_first = false;     // a prompt gives way to its completion; else the end is cut
  bool cut_prompt_at_start = false;  // and loses its beginning, not its end
};

// Tokens and whether each is learned. Position i is predicted from those before it.
struct SftTokens {
  std::vector<int64_t> ids;
  std::vector<uint8_t> learned;
};

// Encodes a text, the parts between its cuts one by one. A token is learned where it shares a byte with a
// learned span. What is longer than max_length is cut; then nothing may be left to learn, which the caller
// may want to tell.
SftTokens encode_learned(const LearnedText& text, const EncodeWithOffsets& encode,
                         const SftTokenOptions& options);

// One sequence of a batch: what the model reads and predicts, padded to `length`.
struct SftSample {
  std::vector<int64_t> tokens, labels, positions;
  std::vector<float> loss_mask;
};
SftSample make_sft_sample(const SftTokens& tokens, int64_t length, int64_t pad);

// The length to which a batch is padded: its longest sequence rounded up to `multiple`, at most `max_length`.
int64_t padded_length(const std::vector<SftTokens>& batch, int64_t max_length, int64_t multiple = 16);

}  // namespace megatron
