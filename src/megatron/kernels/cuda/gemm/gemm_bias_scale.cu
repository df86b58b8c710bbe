#include "megatron/kernels/cuda/core/strided.cuh"
#include "megatron/kernels/cuda/gemm/gemm.h"

namespace megatron::cuda {
namespace {

struct BiasOp {
  AnyFloat c, bias;
  int64_t columns;
  StridedIndex<1> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[1];
    index.offsets(i, at);
    c.set(at[0], c.get(at[0]) + bias.get(i % columns));
  }
};

struct FactorOp {
  AnyFloat c;
  double factor;
  StridedIndex<1> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[1];
    index.offsets(i, at);
    c.set(at[0], factor == 0 ? 0 : factor * c.get(at[0]));
  }
};

}  // namespace

void add_bias(const KernelContext& ctx, const Tensor& c, const Tensor& bias) {
  for_each<1>(ctx, "gemm", c.numel(), false,
              BiasOp{any_float(c), any_float(bias), c.size(-1), {c.shape(), {&c.strides()}}});
}

void scale(const KernelContext& ctx, const Tensor& c, double factor) {
  if (factor != 1)
    for_each<1>(ctx, "gemm", c.numel(), false, FactorOp{any_float(c), factor, {c.shape(), {&c.strides()}}});
}

}  // namespace megatron::cuda
