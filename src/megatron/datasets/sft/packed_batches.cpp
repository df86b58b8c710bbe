#include "megatron/datasets/sft/packed_batches.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

class PackedBatches final : public BatchSource {
 public:
  PackedBatches(std::function<SftTokens(int64_t)> sample, SampleOrder order,
                const PackedBatchOptions& options)
      : sample_(std::move(sample)), order_(std::move(order)), options_(options) {}
  int64_t length() const override { return options_.length; }
  int64_t samples() const override { return order_.samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    return fill_batches(order_, request, [&](Batch& batch, const std::vector<int64_t>& numbers) {
      batch.rows = 1;  // all samples end to end
      for (int64_t number : numbers) {
        SftTokens tokens = sample_(number);
        pad_to_multiple(tokens, options_.multiple, options_.pad);
        append(batch, tokens);
      }
      fill(batch);
    });
  }

 private:
  void append(Batch& batch, const SftTokens& tokens) const {
    for (size_t i = 0; i + 1 < tokens.ids.size(); ++i) {
      for (int64_t id : {tokens.ids[i], tokens.ids[i + 1]})
        if (id < 0 || id >= options_.vocab_size)
          throw ConfigError(fmt::format("--sft: the tokenizer gave token {} (the vocabulary has {})", id,
                                        options_.vocab_size));
      batch.ids.push_back(tokens.ids[i]);
      batch.labels.push_back(tokens.learned[i + 1] ? tokens.ids[i + 1] : kIgnoredLabel);
    }
    batch.lengths.push_back(packed_length(tokens));
  }
  void fill(Batch& batch) const {
    const auto tokens = static_cast<int64_t>(batch.ids.size());
    const int64_t padding =
        (options_.batch_multiple - tokens % options_.batch_multiple) % options_.batch_multiple;
    if (padding == 0) return;
    batch.ids.resize(static_cast<size_t>(tokens + padding), options_.pad);
    batch.labels.resize(batch.ids.size(), kIgnoredLabel);
    batch.lengths.push_back(padding);
  }

  std::function<SftTokens(int64_t)> sample_;
  SampleOrder order_;
  PackedBatchOptions options_;
};

}  // namespace

std::shared_ptr<const BatchSource> packed_batches(std::function<SftTokens(int64_t)> sample, SampleOrder order,
                                                  const PackedBatchOptions& options) {
  return std::make_shared<const PackedBatches>(std::move(sample), std::move(order), options);
}

}  // namespace megatron
