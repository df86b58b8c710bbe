#pragma once

#include <vector>

#include "megatron/datasets/indexed/sequence_store.h"

namespace megatron {

// Upstream's mock data: 100000 sequences of 1 to 4095 tokens, each counting from 1 modulo the vocabulary and
// ending with the end-of-document token.
class MockSequences final : public SequenceStore {
 public:
  MockSequences(int64_t vocab_size, int64_t eod);

  PackedArray<int32_t> lengths() const override {
    return PackedArray<int32_t>(std::span<const int32_t>(lengths_));
  }
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;
  const std::string& name() const override { return name_; }

 private:
  int64_t vocab_size_, eod_;
  std::vector<int32_t> lengths_;
  std::string name_ = "mock";
};

}  // namespace megatron
