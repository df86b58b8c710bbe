#include "megatron/config/schema/tokenizer_config.h"

namespace megatron {
namespace {

Schema tokenizer_config_schema() {
  using C = TokenizerConfig;
  Schema s("tokenizer", "Tokenizer");
  s.field<&C::tokenizer_type>("tokenizer_type", "kind of tokenizer");
  s.field<&C::tokenizer_model>("tokenizer_model", "its file or folder");
  s.field<&C::vocab_size>("vocab_size", "tokens of the vocabulary, where the tokenizer does not say")
      .min(1)
      .max(1 << 30);
  s.field<&C::padded_vocab_size>("padded_vocab_size", "rows of embedding and output head")
      .min(1)
      .max(1 << 30)
      .when_unset("vocab_size rounded up to make_vocab_size_divisible_by x tensor-parallel size");
  s.field<&C::pad_vocab_size>("pad_vocab_size", "pad the vocabulary at all");
  s.field<&C::vocab_file>("vocab_file", "vocabulary of GPT2BPETokenizer and BERT");
  s.field<&C::merge_file>("merge_file", "merges of GPT2BPETokenizer");
  s.field<&C::vocab_extra_ids>("vocab_extra_ids", "further tokens, T5's sentinels").min(0);
  s.field<&C::metadata_path>("metadata_path", "JSON file that describes the tokenizer")
      .flag("--tokenizer-metadata");
  s.field<&C::special_tokens>("special_tokens", "further special tokens").flag("--tokenizer-special-tokens");
  s.field<&C::tiktoken_pattern>("tiktoken_pattern", "how TikTokenizer cuts text into words");
  s.field<&C::tiktoken_num_special_tokens>("tiktoken_num_special_tokens",
                                           "ids that TikTokenizer keeps for special tokens")
      .min(0);
  s.field<&C::tokenizer_sentencepiece_legacy>("tokenizer_sentencepiece_legacy",
                                              "SentencePiece's older treatment of special tokens");
  s.field<&C::sentencepiece_ignore_extra_whitespaces>("sentencepiece_ignore_extra_whitespaces",
                                                      "SentencePiece joins repeated blanks")
      .off_flag("--disable-tokenizer-sentencepiece-ignore-extra-whitespaces")
      .off_flag("--no-tokenizer-sentencepiece-ignore-extra-whitespaces")
      .alias("tokenizer.tokenizer_sentencepiece_ignore_extra_whitespaces");
  s.field<&C::hf_include_special_tokens>("hf_include_special_tokens",
                                         "Hugging Face tokenizers add their special tokens")
      .flag("--tokenizer-hf-include-special-tokens")
      .off_flag("--tokenizer-hf-no-include-special-tokens");
  s.field<&C::hf_tokenizer_kwargs>("hf_tokenizer_kwargs", "further options of a Hugging Face tokenizer");
  s.field<&C::sp_tokenizer_kwargs>("sp_tokenizer_kwargs", "further options of a SentencePiece tokenizer");
  s.field<&C::null_tokenizer_eod_id>("null_tokenizer_eod_id", "end-of-document id of NullTokenizer").min(0);
  s.field<&C::null_tokenizer_pad_id>("null_tokenizer_pad_id", "padding id of NullTokenizer").min(-1);
  s.field<&C::chat_template>("chat_template", "template, or its file, that turns conversations into text")
      .alias("tokenizer.chat_template_path");
  s.field<&C::use_tokenizer_vocab_size>("use_tokenizer_vocab_size",
                                        "the tokenizer's size is the model's, without padding")
      .no_flag();
  return s;
}

}  // namespace

template <>
const Schema& schema<TokenizerConfig>() {
  static const Schema rows = tokenizer_config_schema();
  return rows;
}

}  // namespace megatron
