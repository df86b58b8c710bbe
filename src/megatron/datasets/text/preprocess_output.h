#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/text/block_encoder.h"

namespace megatron {

// The datasets that preprocessing writes, one a key. With several partitions documents are dealt out to them
// in turn and the partitions stand end to end, as Megatron-LM's --partitions orders them; they pass through
// files beside the output.
class PreprocessOutput {
 public:
  explicit PreprocessOutput(const PreprocessOptions& options);
  ~PreprocessOutput();
  PreprocessOutput(const PreprocessOutput&) = delete;
  PreprocessOutput& operator=(const PreprocessOutput&) = delete;

  const std::vector<std::string>& prefixes() const { return prefixes_; }
  void add(const EncodedBlock& block);
  void commit();

 private:
  std::string part_prefix(size_t key, size_t part) const;
  void deal_out(size_t key, const EncodedDocuments& documents);
  void remove_parts() const;

  TokenType type_;
  size_t parts_;
  std::vector<std::string> prefixes_;
  std::vector<std::vector<std::unique_ptr<IndexedWriter>>> writers_;  // by key, then by partition
  int64_t documents_ = 0;
};

}  // namespace megatron
