#pragma once

#include "megatron/tensor/philox.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

enum class Unary : uint8_t {
  Neg,
  Abs,
  Square,
  Sqrt,
  Rsqrt,
  Exp,
  Log,
  Sigmoid,
  Tanh,
  Softplus,
  Relu,
  SquaredRelu,
  Silu,
  Gelu,
  GeluTanh,
  QuickGelu,
  Mish
};

struct UnaryArgs {  // y = f(x + bias); contiguous, bias [last dimension] optional
  Unary kind;
  Tensor x, bias, y;
};
struct UnaryBackwardArgs {  // dx = dy · f'(x + bias)
  Unary kind;
  Tensor x, bias, dy, dx;
};

enum class Binary : uint8_t { Add, Sub, Mul, Div, Max, Min };

struct BinaryArgs {  // out = a ∘ b; a and b strided to out's shape (stride 0 repeats), out contiguous and may
                     // be a or b
  Binary kind;
  Tensor a, b, out;
};

enum class Comparison : uint8_t { Equal, NotEqual, Less, LessEqual };

struct CompareArgs {  // out = a ∘ b as bool; a and b of one dtype, strided to out's shape, out contiguous
  Comparison kind;
  Tensor a, b, out;
};

struct AxpbyArgs {  // out = alpha · a + beta · b; contiguous; b optional; dtypes may differ; out may be a or
                    // b
  double alpha = 1;
  Tensor a;
  double beta = 1;
  Tensor b, out;
};

struct CopyArgs {  // target = source in the target's dtype; any strides, shapes equal
  Tensor source, target;
};

struct FillArgs {
  Tensor out;  // any strides
  double value = 0;
};

struct WhereArgs {  // out = condition ? a : b; condition bool; all strided to out's shape, out contiguous
  Tensor condition, a, b, out;
};

enum class Reduction : uint8_t { Sum, Mean, Max, Min };

struct ReduceArgs {  // x seen as [outer, n, inner], contiguous, into out [outer, inner]
  Reduction kind;
  Tensor x, out;
  int64_t outer = 1, n = 1, inner = 1;
  bool accumulate = false;  // out += result
};

struct SoftmaxArgs {  // over the last dimension, contiguous
  Tensor x, y;
};
struct SoftmaxBackwardArgs {
  Tensor y, dy, dx;
};

// y = x · keep / (1 − p) (+ residual). Whether element (row, column) is kept depends on its place in the
// global [rows, global_columns] matrix alone: word i%4 of Philox counter i/4, i = (row + row_begin) ·
// global_columns + column + column_begin, kept where uniform ≥ p. The backward pass is the same call on the
// gradient. With `rows`, int64, rows[row] stands for row.
struct DropoutArgs {
  Tensor x, residual, y;  // [rows, columns], contiguous; y may be x
  double p = 0;
  RngKey key;
  int64_t row_begin = 0, column_begin = 0, global_columns = 0;
  Tensor rows;  // optional
};

enum class Distribution : uint8_t { Normal, Uniform };

// Element at local index (i, j, …) gets the value of global index base + i · global_strides[0] + j ·
// global_strides[1] … Normal: mean a, deviation b. Uniform: in [a, b).
struct RandomArgs {
  Distribution kind = Distribution::Normal;
  Tensor out;  // contiguous
  double a = 0, b = 1;
  RngKey key;
  int64_t base = 0;
  Shape global_strides;
};

}  // namespace megatron
