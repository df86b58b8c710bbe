#include "megatron/cli/common/tokenizer_flags.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/identifiers.h"

namespace megatron {

Tokenizer TokenizerArguments::open(std::string_view command) const {
  if (type.empty()) throw UsageError(fmt::format("{}: --tokenizer-type T is missing", command));
  return make_tokenizer(type, model, options);
}

Json TokenizerArguments::description() const {
  return type.empty() ? Json::object() : tokenizer_identifiers(type, model, options);
}

std::vector<Flag> tokenizer_flags(TokenizerArguments& a) {
  TokenizerOptions& o = a.options;
  return {text_flag("--tokenizer-type", "T", "type by Megatron's name, HuggingFaceTokenizer say", a.type),
          text_flag("--tokenizer-model", "PATH", "its file or folder", a.model),
          text_flag("--vocab-file", "F", "vocab.json or vocab.txt", o.vocab_file),
          text_flag("--merge-file", "F", "merges.txt", o.merge_file),
          int_flag("--vocab-size", "tokens, where the tokenizer does not say", o.vocab_size, 1),
          int_flag("--vocab-extra-ids", "BERT, T5: sentinel tokens behind the vocabulary", o.vocab_extra_ids),
          text_flag("--tiktoken-pattern", "P", "v1, v2, cl100k or o200k [v2]", o.tiktoken_pattern),
          int_flag("--tiktoken-num-special-tokens", "ids before the ranks [JSON 1000, .tiktoken 0]",
                   o.tiktoken_num_special_tokens),
          list_flag("--tokenizer-special-tokens", "NAMES",
                    "TikTokenizer (NAME or NAME=ID), SentencePiece, Hugging Face", ",", o.special_tokens),
          list_flag("--hf-assign-unused-tokens", "NAME,ID", "further names of ids, separated by blanks", " ",
                    o.assigned_tokens),
          switch_flag("--tokenizer-sentencepiece-legacy", "SentencePiece finds special tokens in text",
                      o.sentencepiece_legacy),
          switch_flag("--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
                      "SentencePiece cuts text at extra spaces", o.ignore_extra_whitespaces, false),
          switch_flag("--tokenizer-hf-no-include-special-tokens", "no BOS, [CLS] or [SEP] of the template",
                      o.include_special_tokens, false),
          text_flag("--tokenizer-metadata", "F", "JSON with the library and chat template", o.metadata),
          int_flag("--null-tokenizer-eod-id", "NullTokenizer [vocabulary size - 1]", o.null_eod_id),
          int_flag("--null-tokenizer-pad-id", "NullTokenizer [none]", o.null_pad_id)};
}

}  // namespace megatron
