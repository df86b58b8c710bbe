#pragma once

#include <mutex>

#include "megatron/datasets/images/image_rows.h"

namespace megatron {

struct ImagePacking {
  int64_t buffer = 1;    // rows that are packed together
  int64_t length = 0;    // of a packed row
  int64_t most = 0;      // tokens of samples in it, of the same or fewer
  int64_t multiple = 1;  // of which each row's own length is one
  int64_t pad = 0;
};

// One split of the rows, `buffer` of them at a time put into packed rows by first fit, longest first. Packs
// follow one another without end; which rows the i-th has is known when those before it are, so that buffers
// are read in turn, and later ones when they are asked for. Safe to share between threads.
class PackedImageRows {
 public:
  using Pack = std::vector<std::shared_ptr<const ImageSample>>;

  PackedImageRows(ImageRows rows, const ImagePacking& packing, std::optional<int64_t> num_samples);

  int64_t size() const { return size_; }
  const Json& description() const { return description_; }
  Pack sample(int64_t i) const;

 private:
  struct Reader;

  std::shared_ptr<Reader> reader_;
  int64_t size_;
  Json description_;
};

// Micro-batches of packs, each a row of `length`.
std::shared_ptr<const BatchSource> packed_image_source(std::function<PackedImageRows::Pack(int64_t)> pack,
                                                       SampleOrder order, const ImagePacking& packing,
                                                       bool weighs_answers = false);

}  // namespace megatron
