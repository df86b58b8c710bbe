#include "megatron/training/setup/tokenizer_setup.h"

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/identifiers.h"

namespace megatron {
namespace {

TokenizerOptions tokenizer_options(const TokenizerConfig& config) {
  if (config.tokenizer_type == TokenizerKind::none)
    throw ConfigError("tokenizer: none is configured; give --tokenizer-type and --tokenizer-model");
  return {.vocab_file = config.vocab_file,
          .merge_file = config.merge_file,
          .vocab_size = config.vocab_size,
          .tiktoken_pattern = config.tiktoken_pattern,
          .tiktoken_num_special_tokens = config.tiktoken_num_special_tokens.value_or(-1),
          .special_tokens = config.special_tokens,
          .assigned_tokens = config.hf_assign_unused_tokens,
          .null_eod_id = config.null_tokenizer_eod_id.value_or(-1),
          .null_pad_id = config.null_tokenizer_pad_id,
          .vocab_extra_ids = config.vocab_extra_ids,
          .sentencepiece_legacy = config.tokenizer_sentencepiece_legacy,
          .ignore_extra_whitespaces = config.tokenizer_sentencepiece_ignore_extra_whitespaces,
          .metadata = config.metadata_path,
          .include_special_tokens = config.hf_include_special_tokens,
          .whole_texts = true};
}

}  // namespace

Tokenizer open_tokenizer(const TokenizerConfig& config) {
  const TokenizerOptions options = tokenizer_options(config);
  return make_tokenizer(name_of(config.tokenizer_type), config.tokenizer_model, options);
}

bool adds_special_tokens(const TokenizerConfig& config) {
  return adds_special_tokens(name_of(config.tokenizer_type), config.tokenizer_model,
                             tokenizer_options(config));
}

VocabularyFacts vocabulary_facts(const TokenizerConfig& config) {
  const TokenizerOptions options = tokenizer_options(config);
  return read_vocabulary_facts(name_of(config.tokenizer_type), config.tokenizer_model, options);
}

Json tokenizer_description(const TokenizerConfig& config) {
  if (config.tokenizer_type == TokenizerKind::none) return Json::object();
  // Upstream is given the template's text, we are given its file.
  std::string text = config.chat_template;
  if (std::filesystem::is_regular_file(text)) text = read_text_file(text);
  return tokenizer_identifiers(name_of(config.tokenizer_type), config.tokenizer_model,
                               tokenizer_options(config), text);
}

int64_t vocabulary_size(const TokenizerConfig& config) { return vocabulary_facts(config).size; }

}  // namespace megatron
