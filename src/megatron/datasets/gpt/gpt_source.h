#pragma once

#include "megatron/datasets/batch_source.h"
#include "megatron/datasets/gpt/blended_dataset.h"

namespace megatron {

// Samples of one split in the order of training: the n-th sample that training consumes is sample n. Padding
// and masked tokens have weight 0. Where documents do not see each other, they are packed sequences. A token
// beyond the vocabulary is an Error.
std::shared_ptr<const BatchSource> gpt_source(BlendedDataset<GptDataset> data, int64_t vocab_size);

}  // namespace megatron
