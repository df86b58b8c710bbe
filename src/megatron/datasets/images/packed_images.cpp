#include "megatron/datasets/images/packed_images.h"

#include <algorithm>

#include "megatron/datasets/sft/first_fit.h"
#include "megatron/datasets/sft/packed_sequences.h"

namespace megatron {
namespace {

class PackedImageSource final : public BatchSource {
 public:
  PackedImageSource(std::function<PackedImageRows::Pack(int64_t)> pack, SampleOrder order,
                    const ImagePacking& packing, bool weighs_answers)
      : pack_(std::move(pack)), order_(std::move(order)), packing_(packing), weighs_(weighs_answers) {}
  int64_t length() const override { return packing_.length; }
  int64_t samples() const override { return order_.samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    return fill_batches(order_, request, [&](Batch& batch, const std::vector<int64_t>& numbers) {
      ImagePatches images;
      for (int64_t number : numbers) {
        const size_t begin = batch.ids.size();
        for (const auto& sample : pack_(number)) {
          append(batch, sample->tokens);
          images.add(sample->images);
        }
        fill(batch, begin + static_cast<size_t>(packing_.length));
      }
      put_images(std::move(images), batch);
    });
  }

 private:
  void append(Batch& batch, SftTokens tokens) const {
    pad_to_multiple(tokens, packing_.multiple, packing_.pad);
    const size_t begin = batch.labels.size();
    for (size_t i = 0; i + 1 < tokens.ids.size(); ++i) {
      batch.ids.push_back(tokens.ids[i]);
      batch.labels.push_back(tokens.learned[i + 1] ? tokens.ids[i + 1] : kIgnoredLabel);
    }
    batch.lengths.push_back(packed_length(tokens));
    if (!weighs_) return;
    const std::vector<float> weights = answer_weights(std::span(batch.labels).subspan(begin));
    batch.weights.insert(batch.weights.end(), weights.begin(), weights.end());
  }
  void fill(Batch& batch, size_t end) const {
    if (batch.ids.size() == end) return;
    batch.lengths.push_back(static_cast<int64_t>(end - batch.ids.size()));
    batch.ids.resize(end, packing_.pad);
    batch.labels.resize(end, kIgnoredLabel);
    if (weighs_) batch.weights.resize(end, 0);
  }

  std::function<PackedImageRows::Pack(int64_t)> pack_;
  SampleOrder order_;
  ImagePacking packing_;
  bool weighs_;
};

}  // namespace

struct PackedImageRows::Reader {
  Reader(ImageRows rows, const ImagePacking& packing) : rows(std::move(rows)), packing(packing) {}

  // The rows of pack i, where there are so many packs or all rows are read.
  std::vector<int64_t> rows_of(int64_t i) {
    while (std::ssize(packs) <= i && read < rows.rows()) read_buffer();
    require(!packs.empty(), "images: no row of the split has a token to predict");
    return packs[static_cast<size_t>(i % std::ssize(packs))];
  }

  void read_buffer() {
    kept.clear();
    kept_from = read;
    std::vector<int64_t> lengths;
    for (; read < rows.rows() && std::ssize(lengths) < packing.buffer; ++read) {
      kept.push_back(std::make_shared<const ImageSample>(rows.sample(read)));
      SftTokens tokens = kept.back()->tokens;
      pad_to_multiple(tokens, packing.multiple, packing.pad);
      lengths.push_back(packed_length(tokens));
    }
    for (const std::vector<int64_t>& bin : first_fit_decreasing(lengths, packing.most)) {
      std::vector<int64_t> pack;
      for (int64_t place : bin)
        if (lengths[static_cast<size_t>(place)] > 0) pack.push_back(kept_from + place);
      std::sort(pack.begin(), pack.end());
      if (!pack.empty()) packs.push_back(std::move(pack));
    }
  }

  const ImageRows rows;
  const ImagePacking packing;
  std::mutex mutex;                                      // of what follows
  int64_t read = 0;                                      // rows whose packs are known
  std::vector<std::vector<int64_t>> packs;               // of rows
  int64_t kept_from = 0;                                 // the first row of the buffer that was read last
  std::vector<std::shared_ptr<const ImageSample>> kept;  // which is not read again for its packs
};

PackedImageRows::PackedImageRows(ImageRows rows, const ImagePacking& packing,
                                 std::optional<int64_t> num_samples)
    : reader_(std::make_shared<Reader>(std::move(rows), packing)), description_(reader_->rows.description()) {
  description_["class"] = "PackedImageRows";
  description_["packing_buffer_size"] = packing.buffer;
  description_["packed_length"] = packing.most;
  size_ = num_samples.value_or(0);
  if (num_samples) return;
  while (reader_->read < reader_->rows.rows()) reader_->read_buffer();
  size_ = std::ssize(reader_->packs);
}

PackedImageRows::Pack PackedImageRows::sample(int64_t i) const {
  Pack pack;
  std::vector<int64_t> rows;
  {
    std::lock_guard lock(reader_->mutex);
    rows = reader_->rows_of(i);
    for (int64_t row : rows) {
      const int64_t place = row - reader_->kept_from;
      const bool kept = place >= 0 && place < std::ssize(reader_->kept);
      pack.push_back(kept ? reader_->kept[static_cast<size_t>(place)] : nullptr);
    }
  }
  for (size_t each = 0; each < pack.size(); ++each)
    if (!pack[each]) pack[each] = std::make_shared<const ImageSample>(reader_->rows.sample(rows[each]));
  return pack;
}

std::shared_ptr<const BatchSource> packed_image_source(std::function<PackedImageRows::Pack(int64_t)> pack,
                                                       SampleOrder order, const ImagePacking& packing,
                                                       bool weighs_answers) {
  return std::make_shared<const PackedImageSource>(std::move(pack), std::move(order), packing,
                                                   weighs_answers);
}

}  // namespace megatron
