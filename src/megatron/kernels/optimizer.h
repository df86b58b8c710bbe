#pragma once

#include <span>

#include "megatron/tensor/tensor.h"

namespace megatron {

struct AdamTensor {
  Tensor parameter;  // what the model reads, any float dtype
  Tensor master;     // fp32/fp64 copy that is updated; the parameter itself where undefined
  Tensor gradient, first, second;
  double weight_decay = 0, lr_scale = 1;
  // Instead of a master: what an fp32 one's bits are above the bf16 parameter's (I16, kernels/split_float.h).
  Tensor remainder;
};

// One step of Adam over many tensors. `gradient_scale` (one element, on the device, optional) multiplies
// every gradient: clipping without a host round trip. `gate` (bool [1], likewise): nothing changes where it
// is false. decoupled: AdamW; otherwise decay is added to the gradient.
struct AdamArgs {
  std::span<const AdamTensor> tensors;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  int64_t step = 1;  // from 1
  bool decoupled = true;
  Tensor gradient_scale, gate;
};

// low = what the bits of wide (fp32) are above those of high (bf16), or as near as 16 bits reach. join: wide
// from high and low instead.
struct SplitFloatArgs {
  Tensor wide, high, low;
  bool join = false;
};

// out[0] = Σ x² over all tensors (fp64 out; partial sums in a fixed order). With accumulate, added to what is
// there.
struct SumSquaresArgs {
  std::span<const Tensor> tensors;
  Tensor out;
  bool accumulate = false;
};

// out[0] = how many elements of all tensors are zero (fp64 out).
struct CountZerosArgs {
  std::span<const Tensor> tensors;
  Tensor out;
};

}  // namespace megatron
