#pragma once

#include "megatron/config/config.h"
#include "megatron/tokenizers/make_tokenizer.h"

namespace megatron {

// The tokenizer of a configuration, for text. A ConfigError where none is configured or a file is wrong.
Tokenizer open_tokenizer(const TokenizerConfig& config);

// Whether Megatron-LM puts special tokens around texts that it encodes with it.
bool adds_special_tokens(const TokenizerConfig& config);

// Its facts alone, which opening a run needs; cheap for large vocabularies.
VocabularyFacts vocabulary_facts(const TokenizerConfig& config);

// How the names of index caches describe it (tokenizer_identifiers); {} where none is configured.
Json tokenizer_description(const TokenizerConfig& config);

// Its tokens: what ResolveOptions::vocabulary asks for.
int64_t vocabulary_size(const TokenizerConfig& config);

}  // namespace megatron
