#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Settings that some types read; 0, -1 and "" mean that they were not given.
struct TokenizerOptions {
  std::string vocab_file, merge_file;  // GPT2BPETokenizer, BertWordPiece types; else files of the folder
  int64_t vocab_size = 0;              // NullTokenizer, ByteLevelTokenizer, TikTokenizer
  std::string tiktoken_pattern;        // v1, v2, cl100k or o200k; v2 where it is not given
  int64_t tiktoken_num_special_tokens = -1;  // 1000 for upstream's JSON form, none for a .tiktoken file
  // TikTokenizer: names in the order of their ids, or NAME=ID; SentencePiece types: see sentencepiece_legacy.
  std::vector<std::string> special_tokens;
  // HuggingFaceTokenizer: NAME,ID, which give ids that a vocabulary keeps in reserve a further name.
  std::vector<std::string> assigned_tokens;
  int64_t null_eod_id = -1, null_pad_id = -1;
  int64_t vocab_extra_ids = 0;  // BertWordPiece types: sentinels <extra_id_0>, … behind the vocabulary
  // SentencePiece types: special_tokens are found in the text, new ones with ids behind the model's.
  bool sentencepiece_legacy = false;
  bool ignore_extra_whitespaces = true;  // SentencePiece types: spaces that the model drops are dropped
  std::string metadata;                  // a file of --tokenizer-metadata, whose library has to be the type's
  bool include_special_tokens = true;    // Hugging Face and BERT types: see adds_special_tokens()
  bool whole_texts = false;              // leaves truncation and padding of a tokenizer.json out
};

// A tokenizer by Megatron's name of its type:
//   HuggingFaceTokenizer, SFTTokenizer   a folder, a tokenizer.json, or a SentencePiece .model
//   SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer   a .model file
//   TikTokenizer   a .tiktoken file (ids are ranks), or upstream's JSON (ranks behind special tokens)
//   GPT2BPETokenizer   a folder with vocab.json and merges.txt, or the two files by options
//   BertWordPieceLowerCase, BertWordPieceCase   a vocab.txt
//   ByteLevelTokenizer, NullTokenizer   no file
// A ConfigError names what is wrong with type, path, options or a file.
Tokenizer make_tokenizer(std::string_view type, const std::string& path,
                         const TokenizerOptions& options = {});

// Whether Megatron-LM's wrapper of a type puts the special tokens of its template around every text that it
// encodes: Hugging Face's BOS, BERT's [CLS] and [SEP].
bool adds_special_tokens(std::string_view type, const std::string& path, const TokenizerOptions& options);

// What training on token ids needs to know of a tokenizer.
struct VocabularyFacts {
  int64_t size = 0;  // one more than the highest id
  SpecialIds specials;
};

// The facts of make_tokenizer(type, path, options), read without building what encodes text.
VocabularyFacts read_vocabulary_facts(std::string_view type, const std::string& path,
                                      const TokenizerOptions& options = {});

}  // namespace megatron
