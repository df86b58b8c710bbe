#include "megatron/datasets/gpt/gpt_source.h"

#include <algorithm>

namespace megatron {
namespace {

template <class To, class From>
void append_all(To& to, const From& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Whether positions count from 0 in every sequence.
bool plain_positions(const Batch& batch) {
  const std::vector<int64_t> rows(static_cast<size_t>(batch.rows), batch.length());
  size_t token = 0;
  for (int64_t length : batch.lengths.empty() ? rows : batch.lengths)
    for (int64_t i = 0; i < length; ++i)
      if (batch.positions[token++] != i) return false;
  return true;
}

class GptSource final : public BatchSource {
 public:
  GptSource(SampleReader reader, SampleOrder order, int64_t vocab_size)
      : reader_(std::move(reader)), order_(std::move(order)), vocab_size_(vocab_size) {}
  int64_t length() const override { return reader_.length; }
  int64_t samples() const override { return order_.samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    return fill_batches(order_, request, [&](Batch& batch, const std::vector<int64_t>& numbers) {
      for (int64_t number : numbers) append(batch, reader_.sample(number));
      finish(batch, request);
    });
  }

 private:
  // Of what sees itself alone; none: the sample is one sequence.
  static std::vector<int64_t> lengths_of(const GptSample& sample) {
    if (!sample.documents.empty()) return sample.documents;
    std::vector<int64_t> lengths;
    for (size_t i = 0; i + 1 < sample.cu_seqlens.size(); ++i)
      if (const int64_t own = sample.cu_seqlens[i + 1] - sample.cu_seqlens[i]; own > 0)
        lengths.push_back(own);
    return lengths;
  }
  static void append(Batch& batch, const GptSample& sample) {
    append_all(batch.ids, sample.tokens);
    append_all(batch.labels, sample.labels);
    append_all(batch.weights, sample.loss_mask);
    append_all(batch.positions, sample.position_ids);
    append_all(batch.lengths, lengths_of(sample));
  }
  void finish(Batch& batch, const StepRequest& request) const {
    for (size_t i = 0; i < batch.labels.size(); ++i)
      if (batch.weights[i] == 0 && batch.labels[i] < 0) batch.labels[i] = kIgnoredLabel;
    for (const std::vector<int64_t>* tokens : {&batch.ids, &batch.labels})
      for (int64_t token : *tokens)
        if ((token < 0 && (tokens == &batch.ids || token != kIgnoredLabel)) || token >= vocab_size_)
          throw ConfigError(
              fmt::format("data: a sample of iteration {} has token {} (the vocabulary has {}); "
                          "give the --vocab-size of the tokenizer that made the data",
                          request.iteration + 1, token, vocab_size_));
    if (plain_positions(batch)) batch.positions.clear();
    if (std::all_of(batch.weights.begin(), batch.weights.end(), [](float w) { return w == 1; }))
      batch.weights.clear();
  }

  SampleReader reader_;
  SampleOrder order_;
  int64_t vocab_size_;
};

}  // namespace

std::shared_ptr<const BatchSource> gpt_source(SampleReader reader, SampleOrder order, int64_t vocab_size) {
  return std::make_shared<const GptSource>(std::move(reader), std::move(order), vocab_size);
}

}  // namespace megatron
