#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class TokenizerKind {
  none,
  bert_lower,
  bert,
  gpt2_bpe,
  sentencepiece,
  gpt_sentencepiece,
  llama2,
  huggingface,
  tiktoken,
  multimodal,
  sft,
  byte_level,
  null_,
  null_multimodal
};
constexpr auto names(TokenizerKind) {
  return std::array{"none",
                    "BertWordPieceLowerCase",
                    "BertWordPieceCase",
                    "GPT2BPETokenizer",
                    "SentencePieceTokenizer",
                    "GPTSentencePieceTokenizer",
                    "Llama2Tokenizer",
                    "HuggingFaceTokenizer",
                    "TikTokenizer",
                    "MultimodalTokenizer",
                    "SFTTokenizer",
                    "ByteLevelTokenizer",
                    "NullTokenizer",
                    "NullMultimodalTokenizer"};
}
enum class TiktokenPattern { none, v1, v2, cl100k, o200k };
constexpr auto names(TiktokenPattern) { return std::array{"none", "v1", "v2", "cl100k", "o200k"}; }

struct TokenizerConfig {
  TokenizerKind tokenizer_type = TokenizerKind::none;
  std::string tokenizer_model;
  int64_t vocab_size = 0;
  int64_t padded_vocab_size = 0;
  bool pad_vocab_size = true;
  std::string vocab_file;
  std::string merge_file;
  int64_t vocab_extra_ids = 0;
  std::string metadata_path;
  std::vector<std::string> special_tokens;
  TiktokenPattern tiktoken_pattern = TiktokenPattern::none;
  int64_t tiktoken_num_special_tokens = 1000;
  bool tokenizer_sentencepiece_legacy = false;
  bool sentencepiece_ignore_extra_whitespaces = true;
  bool hf_include_special_tokens = true;
  Json hf_tokenizer_kwargs;
  Json sp_tokenizer_kwargs;
  std::optional<int64_t> null_tokenizer_eod_id;
  int64_t null_tokenizer_pad_id = -1;
  std::string chat_template;
  bool use_tokenizer_vocab_size = false;
};

template <>
const Schema& schema<TokenizerConfig>();

}  // namespace megatron
