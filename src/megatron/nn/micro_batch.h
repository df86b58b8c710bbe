#pragma once

#include <map>
#include <string>
#include <vector>

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
  SeqInfo seq;
  std::vector<MtpTokens> mtp;
  std::map<std::string, Tensor> extra;
};

}  // namespace megatron
