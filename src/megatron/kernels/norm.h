#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

enum class NormKind : uint8_t { Rms, Layer };

// y = norm(x + residual) · weight (+ bias) over the last dimension; rows contiguous. Statistics in fp32 (fp64
// for fp64).
struct NormArgs {
  NormKind kind = NormKind::Rms;
  double epsilon = 1e-5;
  bool zero_centered = false;  // weight is stored as gamma − 1
  Tensor x, residual;          // residual optional
  Tensor weight, bias;         // [hidden]; weight optional (a plain norm), bias for Layer only, optional
  Tensor y, sum;               // sum: receives x + residual where residual is given
  Tensor mean, rstd;           // [rows]; mean for Layer only
};

// dx = gradient of the norm's input (+ dsum, the gradient that reached x + residual directly). dweight and
// dbias, where defined, receive the sums over rows, added to what is there when `accumulate`.
struct NormBackwardArgs {
  NormKind kind = NormKind::Rms;
  bool zero_centered = false;
  Tensor dy, dsum;  // dsum optional
  Tensor x;         // the norm's input (x + residual of the forward call)
  Tensor weight, mean, rstd;
  Tensor dx, dweight, dbias;
  bool accumulate = false;
};

}  // namespace megatron
