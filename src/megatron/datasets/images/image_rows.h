#pragma once

#include <optional>

#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/images/image_text.h"
#include "megatron/datasets/images/tar_file.h"
#include "megatron/datasets/sample_order.h"
#include "megatron/datasets/sft/conversation.h"

namespace megatron {

// Rows with the images that they name, read when they are asked for.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  virtual int64_t size() const = 0;
  virtual std::string origin(int64_t row) const = 0;
  virtual Json row(int64_t row) const = 0;
  virtual std::vector<Image> images(int64_t row, const Json& json) const = 0;
};

// A JSON lines file whose rows name image files (`images`, `image`, or the `image` of a message's parts), in
// its folder or by whole paths; or a tar of WebDataset, or a folder of such: members that share their name up
// to the first dot are a row, `.json` or, of a caption, `.txt`, and images.
std::shared_ptr<const ImageStore> open_images(const std::string& path);
// Whether a data path is one of these, and not the prefix of .bin and .idx files.
bool names_images(const std::string& path);

// Rows as a model reads them, safe to ask from several threads.
struct SampleRows {
  int64_t count = 0;
  std::function<ImageSample(int64_t row)> sample;
};
SampleRows encoded_rows(std::shared_ptr<const ImageStore> store,
                        std::shared_ptr<const ImageTextEncoder> encode);

// One split of them: row i mod n is sample i.
class ImageRows {
 public:
  ImageRows(SampleRows rows, const std::string& path, std::array<double, 2> ends, int64_t max_rows,
            std::optional<int64_t> num_samples);

  int64_t size() const { return size_; }
  int64_t rows() const { return range_.size(); }
  const Json& description() const { return description_; }
  ImageSample sample(int64_t i) const { return rows_.sample(range_.begin + i % range_.size()); }

 private:
  SampleRows rows_;
  IndexRange range_;
  int64_t size_;
  Json description_ = Json::object();
};

// The weight of each label where an answer, a run of labels, of n tokens counts as the root of n: its loss is
// the mean over its tokens.
std::vector<float> answer_weights(std::span<const int64_t> labels);

// The images of a micro-batch, in the order of its text; nothing where it has none.
void put_images(ImagePatches images, Batch& batch);

// Micro-batches of such samples, each a row padded to `length`; `weighs_answers`: by answer_weights().
std::shared_ptr<const BatchSource> image_source(std::function<ImageSample(int64_t)> sample, SampleOrder order,
                                                int64_t length, int64_t pad, bool weighs_answers = false);

}  // namespace megatron
