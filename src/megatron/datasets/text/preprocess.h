#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/log.h"
#include "megatron/datasets/indexed/token_type.h"
#include "megatron/datasets/text/document_reader.h"

namespace megatron {

// Appends the tokens of a text. Each worker has one of its own.
using EncodeText = std::function<void(std::string_view text, std::vector<int32_t>& tokens)>;

struct PreprocessOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  TextFormat format = TextFormat::automatic;
  std::vector<std::string> keys = {"text"};
  std::optional<int32_t> append_eod;  // the token behind each document that is not empty
  bool split_sentences = false, keep_newlines = false;
  TokenType type = TokenType::i32;
  int workers = 1;
  int partitions = 1;            // documents are dealt out to these in turn, which then stand end to end
  bool keep_sequential = false;  // keep the input's order also with several partitions
  bool skip_bad_lines = false;   // count malformed documents instead of stopping at the first
  size_t block_bytes = size_t{1} << 20;
  int64_t segment_bytes = int64_t{4} << 30;  // of input after which what is written is kept for a next run
  std::string encoder;                       // describes what encodes: a run with another starts anew
  Log log = Log(LogLevel::error);
};

struct PreprocessReport {
  std::vector<std::string> prefixes;  // that were written, one a key
  int64_t documents = 0, tokens = 0, bad_lines = 0, input_bytes = 0;
  int64_t resumed_bytes = 0;  // of the input that an earlier run had encoded
  double seconds = 0;
};

// Where the tokens of a key go: PREFIX_KEY_document or PREFIX_KEY_sentence.
std::string preprocess_output(const PreprocessOptions& options, const std::string& key);

// Reads, parses, encodes and writes at once: one thread reads, `workers` encode, the caller's writes. What is
// written does not depend on their number. Files appear when all of them are complete; an Error names file
// and line of the first malformed document. A run that was stopped is continued by one with the same inputs
// and options (PreprocessOutput).
PreprocessReport preprocess(const PreprocessOptions& options,
                            const std::function<EncodeText()>& make_encoder);

}  // namespace megatron
