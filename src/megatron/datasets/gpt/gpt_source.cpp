#include "megatron/datasets/gpt/gpt_source.h"

#include <algorithm>

namespace megatron {
namespace {

class GptSource final : public BatchSource {
 public:
  GptSource(BlendedDataset<GptDataset> data, int64_t vocab_size)
      : data_(std::move(data)), vocab_size_(vocab_size) {}
  int64_t length() const override { return data_.datasets()[0]->seq_length(); }
  int64_t samples() const override { return data_.size(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    std::vector<Batch> batches;
    for (const Share& share : request.shares) {
      Batch& batch = batches.emplace_back();
      batch.rows = share.count;
      batch.first = share.first;
      for (int64_t i = share.first; i < share.first + share.count; ++i)
        append(batch, data_.sample(request.consumed + i));
      check(batch, request);
      if (std::all_of(batch.weights.begin(), batch.weights.end(), [](float w) { return w == 1; }))
        batch.weights.clear();
    }
    return batches;
  }

 private:
  void check(const Batch& batch, const StepRequest& request) const {
    for (const std::vector<int64_t>* tokens : {&batch.ids, &batch.labels})
      for (int64_t token : *tokens)
        if (token < 0 || token >= vocab_size_)
          throw ConfigError(
              fmt::format("data: a sample of iteration {} has token {} (the vocabulary has {}); "
                          "give the --vocab-size of the tokenizer that made the data",
                          request.iteration + 1, token, vocab_size_));
  }
  static void append(Batch& batch, const GptSample& sample) {
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(batch.ids, sample.tokens);
    add(batch.labels, sample.labels);
    add(batch.weights, sample.loss_mask);
    for (size_t i = 0; i + 1 < sample.cu_seqlens.size(); ++i)
      if (const int32_t own = sample.cu_seqlens[i + 1] - sample.cu_seqlens[i]; own > 0)
        batch.lengths.push_back(own);
  }

  BlendedDataset<GptDataset> data_;
  int64_t vocab_size_;
};

}  // namespace

std::shared_ptr<const BatchSource> gpt_source(BlendedDataset<GptDataset> data, int64_t vocab_size) {
  return std::make_shared<const GptSource>(std::move(data), vocab_size);
}

}  // namespace megatron
