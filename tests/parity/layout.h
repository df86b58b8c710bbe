#pragma once

#include "megatron/training/parity.h"

// The names under which tests know training/parity.
namespace megatron::testing {

using Trained = TrainedLayout;
using Interpose = std::function<ProcessGroup(const ProcessGroup& world)>;

// `batches`: one global batch per step, [global batch, length + 1].
inline Trained train(const Config& config, const ParallelSizes& sizes,
                     const std::vector<std::vector<int64_t>>& batches, DType dtype = DType::F64,
                     const Interpose& interpose = {}, Device device = kCpu,
                     const std::vector<std::vector<int64_t>>& documents = {}) {
  return train_layout(
      config,
      {.sizes = sizes, .dtype = dtype, .device = device, .documents = documents, .interpose = interpose},
      batches);
}

// The largest difference of two sets of tensors; `where` names the worst tensor.
inline double difference(const WholeTensors& a, const WholeTensors& b, std::string* where) {
  TensorDifference result = largest_difference(a, b);
  *where = result.where;
  return result.worst;
}

}  // namespace megatron::testing
