#pragma once

#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/masked/bert_dataset.h"
#include "megatron/datasets/masked/t5_dataset.h"
#include "megatron/datasets/sample_order.h"

namespace megatron {

// Micro-batches of masked text: ids and the labels of what was masked. Batch::extra holds int64 tensors on
// the host: "token_types" and "padding_mask" (1: a token) [rows, length], and, with the binary head, its
// labels "is_random" [rows].
std::shared_ptr<const BatchSource> bert_source(std::shared_ptr<const BlendedDataset<BertDataset>> data,
                                               SampleOrder order, int64_t length, bool binary_head);

// Micro-batches for an encoder and a decoder: ids and labels are the decoder's, of `decoder_length` tokens.
// Batch::extra: "encoder_ids" and "encoder_mask" [rows, length], "decoder_mask" [rows, decoder length].
std::shared_ptr<const BatchSource> t5_source(std::shared_ptr<const BlendedDataset<T5Dataset>> data,
                                             SampleOrder order, int64_t decoder_length);

}  // namespace megatron
