#pragma once

#include "megatron/kernels/cuda/rows.cuh"
#include "megatron/kernels/cuda/shared_memory.cuh"

namespace megatron::cuda {

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args);

// How a row lies in registers: `Items` vectors of W elements in each thread of a block, or of a warp where a
// block takes one row per warp.
template <int W, int Items, bool Warp>
struct RowShape {
  static constexpr int kRows = Warp ? 4 : 1;                                 // per block
  static constexpr int kThreads = Warp ? 32 * kRows : 512;                   // at most
  static constexpr int64_t kColumns = int64_t{Warp ? 32 : 512} * Items * W;  // at most

  __device__ static int64_t column(int item) {
    return (static_cast<int64_t>(item) * blockDim.x + threadIdx.x) * W;
  }
  template <class C>
  __device__ static C sum(C value) {
    if constexpr (Warp)
      return warp_sum(value);
    else
      return block_sum(value);
  }
};

// The rows that a block will need next, on their way into shared memory. Each thread fetches what it will
// read itself, so that no barrier is needed. Very long rows, and those that do not lie well, are read in
// place.
template <class T, int W, int Items, bool Warp, int Tensors>
struct RowRing {
  using Row = RowShape<W, Items, Warp>;
  static constexpr bool kUsed = W * sizeof(T) == 16 && (Warp || Items <= 2);  // what fits a multiprocessor
  static constexpr int kStages = kUsed ? 3 : 1;
  char* memory;

  static size_t bytes(dim3 block) {
    return kUsed ? size_t{kStages} * Tensors * Items * block.x * block.y * 16 : 0;
  }
  __device__ Vec<T, W>* slot(int stage, int tensor, int item) const {
    int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    return reinterpret_cast<Vec<T, W>*>(memory) + ((stage * Tensors + tensor) * Items + item) * threads +
           thread;
  }
  __device__ void fetch(int stage, int tensor, const T* row, int64_t n) const {
    if constexpr (kUsed) {
      if (!row) return;
#pragma unroll
      for (int i = 0; i < Items; ++i)
        if (int64_t column = Row::column(i); column < n)
          copy_async(slot(stage, tensor, i), row + column, true);
    }
  }
  __device__ Vec<T, W> read(int stage, int tensor, int item, const T* row) const {
    if constexpr (kUsed)
      return cuda::read<W>(slot(stage, tensor, item)->v);
    else
      return cuda::read<W>(row + Row::column(item));
  }
};

// Calls f(RowShape, block) for the smallest shape that holds a row of n elements.
template <class T, class F>
void dispatch_row(const char* kernel, int64_t n, bool vector, F&& f) {
  auto choose = [&]<int W>(std::integral_constant<int, W>) {
    auto fits = [&]<int Items, bool Warp>(RowShape<W, Items, Warp> shape) {
      if (n > shape.kColumns) return false;
      int64_t threads = (n + Items * W - 1) / (Items * W);
      f(shape, Warp ? dim3(32, shape.kRows) : dim3(static_cast<unsigned>((threads + 31) / 32 * 32)));
      return true;
    };
    constexpr int most = W == 1 ? 32 : 16;
    bool done = false;
    if constexpr (W == 1)  // rows that do not lie well: fewer shapes to compile
      done = fits(RowShape<W, 4, true>{}) || fits(RowShape<W, 4, false>{});
    else
      done = fits(RowShape<W, 1, true>{}) || fits(RowShape<W, 2, true>{}) || fits(RowShape<W, 3, true>{}) ||
             fits(RowShape<W, 4, true>{}) || fits(RowShape<W, 2, false>{}) || fits(RowShape<W, 4, false>{});
    done = done || fits(RowShape<W, most, false>{});
    require(done, "{}: a row of {} elements is too long for the CUDA kernel; {} is the most", kernel, n,
            RowShape<W, most, false>::kColumns);
  };
  if (vector)
    choose(std::integral_constant<int, kVector<T>>{});
  else
    choose(std::integral_constant<int, 1>{});
}

}  // namespace megatron::cuda
