#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

// clang-format off
enum class TokenizerKind {
  none, bert_lower, bert, gpt2_bpe, sentencepiece, gpt_sentencepiece, llama2, huggingface, tiktoken, multimodal,
  sft, byte_level, null_, null_multimodal
};
constexpr auto names(TokenizerKind) {
  return std::array{"none", "BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer",
                    "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer",
                    "HuggingFaceTokenizer", "TikTokenizer", "MultimodalTokenizer", "SFTTokenizer",
                    "ByteLevelTokenizer", "NullTokenizer", "NullMultimodalTokenizer"};
}
// clang-format on

struct TokenizerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/tokenizer.def"
#undef SETTING
};

}  // namespace megatron
