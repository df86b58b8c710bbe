#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// What a GPT model is trained on, one sample. Fields that the options leave out are empty.
struct GptSample {
  std::vector<int64_t> tokens, labels;
  std::vector<float> loss_mask;
  std::vector<int64_t> position_ids;
  std::vector<uint8_t> attention_mask;  // [L, L], 1 where a token must not be seen
  std::vector<int32_t> cu_seqlens;      // [L + 1], filled with L behind the last document
  int32_t max_seqlen = 0;               // of the documents in the sample
  std::vector<int64_t> documents;       // reset_attention_mask: lengths, each with its end-of-document token
};

struct GptSampleOptions {
  bool extra_token = true;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  bool create_attention_mask = true;
  bool inter_document_masking = false;
  int64_t eod = 0, pad = -1;
};

// The tokens of a sample as they are read, and how many come from each document.
struct SampleText {
  std::vector<int64_t> tokens;
  std::vector<int64_t> parts;
};

// The id that marks padding: the tokenizer's, or -1 where it has none or where a token that ends documents
// has the same id, since those would be taken for padding. `allow_ambiguous` keeps it. Megatron-LM asks for
// all special tokens, which none of its tokenizers tells, and then compares with these.
int64_t resolve_pad_id(std::optional<int64_t> pad, std::span<const int64_t> ends, bool allow_ambiguous);

// Pads the text to `seq_length` (and the extra token), and makes labels, masks and positions of it.
GptSample make_gpt_sample(SampleText text, int64_t seq_length, const GptSampleOptions& options);

}  // namespace megatron
