#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/text/block_encoder.h"

namespace megatron {

// How far preprocessing has come.
struct PreprocessState {
  int64_t blocks = 0, documents = 0, tokens = 0, bad_lines = 0, input_bytes = 0;
};

// The datasets that preprocessing writes, one a key. With several partitions documents are dealt out to them
// in turn and the partitions stand end to end, as Megatron-LM's --partitions orders them.
//
// Tokens go to segments in the folder PREFIX.segments, each a dataset of its own that is brought to the disk
// after so many bytes of input. commit() joins them. A run that ends before leaves the segments that are
// complete, and the next run with the same inputs and options goes on behind them.
class PreprocessOutput {
 public:
  explicit PreprocessOutput(const PreprocessOptions& options);
  ~PreprocessOutput();
  PreprocessOutput(const PreprocessOutput&) = delete;
  PreprocessOutput& operator=(const PreprocessOutput&) = delete;

  const std::vector<std::string>& prefixes() const { return prefixes_; }
  const PreprocessState& state() const { return state_; }  // at first, that of the run that is continued
  void add(const EncodedBlock& block);
  void commit();

 private:
  std::string file(size_t key, size_t part, int64_t segment) const;
  bool has_segments(int64_t count) const;
  void open_segment();
  void end_segment();
  void deal_out(size_t key, const EncodedDocuments& documents);

  TokenType type_;
  size_t parts_;
  int64_t segment_bytes_;
  std::string folder_;
  Json work_;  // inputs and options: what segments must have in common
  std::vector<std::string> prefixes_;
  std::vector<std::vector<std::unique_ptr<IndexedWriter>>> writers_;  // by key, then by partition
  PreprocessState state_;
  int64_t segments_ = 0, segment_begin_ = 0;  // complete ones; input bytes before the open one
};

}  // namespace megatron
