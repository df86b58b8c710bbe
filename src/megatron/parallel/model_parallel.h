#pragma once

#include "megatron/parallel/context/context_parallel.h"
#include "megatron/parallel/expert/expert_parallel.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// How one replica of a model is split, as its blocks need to know it. By default not at all.
struct ModelParallel {
  TensorParallel tensor;
  ContextParallel context;
  ExpertParallel expert;
};

}  // namespace megatron
