#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

// Sums partial rows [parts, columns] that blocks have left, the second pass of a column reduction.
namespace megatron::cuda {

inline constexpr int kReduceColumns = 32, kReduceRows = 32;

// put(column, Σ over parts of partial[part, column]): each thread sums some parts, then these sums are added
// in order.
template <class C, class Put>
__global__ void __launch_bounds__(kReduceColumns* kReduceRows)
    reduce_partials_kernel(const C* partial, int64_t parts, int64_t columns, Put put) {
  __shared__ C sums[kReduceRows][kReduceColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kReduceColumns + threadIdx.x;
  C sum = 0;
  griddep_wait();
  if (column < columns)
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += blockDim.y)
      sum += partial[part * columns + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= columns) return;
  for (unsigned y = 1; y < blockDim.y; ++y) sum += sums[y][threadIdx.x];
  put(column, sum);
}

// A PDL launch: starts early where the kernel that makes the partials allows it.
template <class C, class Put>
void reduce_partials(const char* name, cudaStream_t stream, const C* partial, int64_t parts, int64_t columns,
                     Put put) {
  const auto rows = static_cast<unsigned>(std::clamp<int64_t>(parts / 4, 1, kReduceRows));
  launch_pdl(name, reduce_partials_kernel<C, Put>, blocks_for(columns, kReduceColumns),
             dim3(kReduceColumns, rows), stream, partial, parts, columns, put);
}

}  // namespace megatron::cuda
