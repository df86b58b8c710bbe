#include "megatron/datasets/masked/masked_source.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

// A host tensor of rows that are added one by one.
struct ExtraRows {
  std::vector<int64_t> values;

  void add(const std::vector<int64_t>& row) { values.insert(values.end(), row.begin(), row.end()); }
  Tensor tensor(int64_t rows) {
    auto owner = std::make_shared<std::vector<int64_t>>(std::move(values));
    const auto size = static_cast<int64_t>(owner->size());
    const Shape shape = size == rows ? Shape{rows} : Shape{rows, size / rows};
    return Tensor::wrap(owner->data(), shape, DType::I64, kCpu, owner);
  }
};

// What is not learned has no label.
void add_labels(Batch& batch, const std::vector<int64_t>& labels, const std::vector<int64_t>& mask) {
  for (size_t i = 0; i < labels.size(); ++i) batch.labels.push_back(mask[i] ? labels[i] : kIgnoredLabel);
}

// Reads the samples of each micro-batch and fills it by fill(batch, samples, extra).
template <class Dataset, class Fill>
class MaskedSource final : public BatchSource {
 public:
  MaskedSource(std::shared_ptr<const BlendedDataset<Dataset>> data, SampleOrder order, int64_t length,
               Fill fill)
      : data_(std::move(data)), order_(std::move(order)), length_(length), fill_(std::move(fill)) {}
  int64_t length() const override { return length_; }
  int64_t samples() const override { return order_.samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    return fill_batches(order_, request, [&](Batch& batch, const std::vector<int64_t>& numbers) {
      std::map<std::string, ExtraRows> extra;
      for (int64_t number : numbers) fill_(batch, extra, data_->sample(number));
      for (auto& [name, rows] : extra) batch.extra[name] = rows.tensor(batch.rows);
    });
  }

 private:
  std::shared_ptr<const BlendedDataset<Dataset>> data_;
  SampleOrder order_;
  int64_t length_;
  Fill fill_;
};

template <class Dataset, class Fill>
std::shared_ptr<const BatchSource> masked_source(std::shared_ptr<const BlendedDataset<Dataset>> data,
                                                 SampleOrder order, int64_t length, Fill fill) {
  return std::make_shared<const MaskedSource<Dataset, Fill>>(std::move(data), std::move(order), length,
                                                             std::move(fill));
}

}  // namespace

std::shared_ptr<const BatchSource> bert_source(std::shared_ptr<const BlendedDataset<BertDataset>> data,
                                               SampleOrder order, int64_t length, bool binary_head) {
  using Extra = std::map<std::string, ExtraRows>;
  return masked_source(std::move(data), std::move(order), length,
                       [binary_head](Batch& batch, Extra& extra, const BertSample& sample) {
                         batch.ids.insert(batch.ids.end(), sample.text.begin(), sample.text.end());
                         add_labels(batch, sample.labels, sample.loss_mask);
                         extra["token_types"].add(sample.types);
                         extra["padding_mask"].add(sample.padding_mask);
                         if (binary_head) extra["is_random"].add({sample.is_random});
                       });
}

std::shared_ptr<const BatchSource> t5_source(std::shared_ptr<const BlendedDataset<T5Dataset>> data,
                                             SampleOrder order, int64_t decoder_length) {
  using Extra = std::map<std::string, ExtraRows>;
  return masked_source(std::move(data), std::move(order), decoder_length,
                       [](Batch& batch, Extra& extra, const T5Sample& sample) {
                         batch.ids.insert(batch.ids.end(), sample.text_dec.begin(), sample.text_dec.end());
                         add_labels(batch, sample.labels, sample.loss_mask);
                         extra["encoder_ids"].add(sample.text_enc);
                         extra["encoder_mask"].add(sample.enc_mask);
                         extra["decoder_mask"].add(sample.dec_mask);
                       });
}

}  // namespace megatron
