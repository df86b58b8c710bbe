#pragma once

#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/sample_order.h"

namespace megatron {

// Samples of one length by number, of any kind of dataset. Reading is safe on several threads.
struct SampleReader {
  int64_t length = 0;
  std::function<GptSample(int64_t)> sample;
};
template <class Dataset>
SampleReader read_blend(std::shared_ptr<const BlendedDataset<Dataset>> data, int64_t length) {
  return {length, [data = std::move(data)](int64_t i) { return data->sample(i); }};
}

// Micro-batches of such samples. Padding and masked tokens have weight 0. Where documents do not see each
// other, they are packed sequences; positions are given where they do not count from 0 in every sequence. A
// token beyond the vocabulary is a ConfigError.
std::shared_ptr<const BatchSource> gpt_source(SampleReader reader, SampleOrder order, int64_t vocab_size);

}  // namespace megatron
