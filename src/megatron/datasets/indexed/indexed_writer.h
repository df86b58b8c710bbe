#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/atomic_file.h"
#include "megatron/datasets/indexed/token_type.h"

namespace megatron {

// Writes PREFIX.bin and PREFIX.idx. Neither path changes before commit(); the .idx comes last, so that
// whoever sees it finds a complete .bin. Twelve bytes a sequence are kept in memory.
class IndexedWriter {
 public:
  IndexedWriter(std::string prefix, TokenType type, bool multimodal = false);

  // One sequence of the document in progress. An Error names a token that the type cannot hold.
  void add_sequence(std::span<const int64_t> tokens, int8_t mode = 0);
  // Whole documents that are already in the file's type: their bytes end to end, the length of each sequence,
  // and the number of sequences of each document.
  void add_documents(std::span<const std::byte> bytes, std::span<const int32_t> lengths,
                     std::span<const int32_t> sequences);
  // Ends a document, which may be empty.
  void end_document();
  // All of another dataset of the same type, behind what is there.
  void add_dataset(const std::string& prefix);

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t documents() const { return static_cast<int64_t>(document_index_.size()) - 1; }
  int64_t tokens() const { return tokens_; }
  void commit();

 private:
  void add_length(int64_t length, int8_t mode);

  std::string prefix_;
  TokenType type_;
  bool multimodal_;
  AtomicFile bin_, idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_index_{0};
  std::vector<int8_t> modes_;
  std::vector<std::byte> encoded_;
  int64_t tokens_ = 0;
};

// Tokens as elements of `type`, appended to `out`. An Error names `origin` and a token that does not fit.
void encode_tokens(std::span<const int64_t> tokens, TokenType type, std::string_view origin,
                   std::vector<std::byte>& out);
void encode_tokens(std::span<const int32_t> tokens, TokenType type, std::string_view origin,
                   std::vector<std::byte>& out);

// Joins datasets in this order into one.
void merge_datasets(const std::vector<std::string>& prefixes, const std::string& output,
                    bool multimodal = false);

}  // namespace megatron
