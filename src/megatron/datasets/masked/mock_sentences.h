#pragma once

#include <vector>

#include "megatron/datasets/indexed/sequence_store.h"
#include "megatron/datasets/masked/masking.h"

namespace megatron {

// A vocabulary of whole words without a file: the last ids are the special tokens of BERT, and of T5 with
// `extra_ids` sentinels; 0 fills up. An Error where there is no room for them.
WordPieces mock_word_pieces(int64_t vocab_size, int64_t extra_ids);

// Made-up documents of four sentences, of 5 to 36 words each, that count through the vocabulary.
class MockSentences final : public SentenceStore {
 public:
  explicit MockSentences(const WordPieces& vocabulary);

  PackedArray<int32_t> lengths() const override {
    return PackedArray<int32_t>(std::span<const int32_t>(lengths_));
  }
  PackedArray<int64_t> document_index() const override {
    return PackedArray<int64_t>(std::span<const int64_t>(documents_));
  }
  int64_t max_length() const override;
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;
  const std::string& name() const override { return name_; }

 private:
  std::vector<int64_t> words_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_;
  std::string name_ = "mock";
};

}  // namespace megatron
