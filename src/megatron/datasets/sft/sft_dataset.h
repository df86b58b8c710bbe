#pragma once

#include <optional>

#include "megatron/datasets/gpt/gpt_sample.h"
#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/sft/conversation.h"

namespace megatron {

struct SftOptions {
  int64_t seq_length = 0;
  int64_t pad = 0;
  int64_t max_rows = 0;          // of a split that are used at most; 0: all
  int64_t context_parallel = 1;  // above 1, conversations are padded so that all ranks get equal shares
  PromptFormat format;
};

// Conversations of one row, end to end in a sample; attention stays within each (cu_seqlens). What does not
// fit is cut.
GptSample pack_conversations(std::span<const EncodedConversation> conversations, const SftOptions& options);

// Megatron-LM's SFTDataset: row i mod n of the split is sample i, in the order of the file. Safe to share
// between threads where the encoder is.
class SftDataset {
 public:
  SftDataset(std::shared_ptr<const JsonRows> rows, SftOptions options, EncodeMessages encode,
             std::array<double, 2> ends, std::optional<int64_t> num_samples);

  int64_t size() const { return size_; }
  IndexRange rows() const { return range_; }
  const Json& description() const { return description_; }
  GptSample sample(int64_t i) const;

 private:
  std::shared_ptr<const JsonRows> rows_;
  SftOptions options_;
  EncodeMessages encode_;
  IndexRange range_;
  int64_t size_;
  Json description_ = Json::object();
};

}  // namespace megatron
