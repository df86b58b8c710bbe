#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/nn/batch.h"
#include "megatron/nn/seq_info.h"

namespace megatron {

// What an MTP layer reads, one token further on than the layer before it.
struct MtpTokens {
  Tensor ids, labels;  // int64 [tokens]
  Tensor weights;      // of its token losses, [tokens]; undefined: 1
  Tensor weight;       // fp64 [1]: of their sum in the loss of the step
  Tensor share;        // fp64 [1]: of their sum in the mean that is reported
};

// This rank's part of a micro-batch on the device.
struct MicroBatch {
  Tensor ids, labels;  // int64 [tokens]
  Tensor weights;      // [tokens]: of each token's loss in the loss of the step; stride 0 where all are alike
  Tensor values;       // [kinds, tokens], as in Batch::values, of the dtype of losses; undefined: none
  SeqInfo seq;
  std::vector<MtpTokens> mtp;
  // As in Batch::extra: int64, and of the model's dtype `pixels`. `image_rows`, int64 [tokens of this rank]:
  // for each token the row of the text or, behind all of those, of the tower that is its embedding.
  std::map<std::string, Tensor> extra;
  std::vector<PatchGrid> image_grids;
  // fp64 [1], beside extra tensors: what a mean over the micro-batch counts in the loss of the step, and in
  // the mean that is reported.
  Tensor mean_weight, share;
  // Where a chunk keeps what its encoder layers made of the source: a pass that finds it there does not run
  // them again. Null: nowhere.
  Tensor* encoded = nullptr;
  // What a teacher's last layer made of it, [tokens, its hidden size], on the rank that has the head;
  // undefined: nothing is learned from one.
  Tensor taught;
  // What a teacher was recorded to predict: its likeliest tokens of every row, int64 [tokens, k], and ln p of
  // each, fp32 or fp64. Undefined: nothing is learned from a recording.
  Tensor recorded_tokens, recorded_log_probs;
};

}  // namespace megatron
