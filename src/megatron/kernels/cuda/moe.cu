#include "megatron/kernels/cuda/pointwise/index.cuh"

namespace megatron::cuda {
namespace {

// Token copies are counted and placed in chunks, one warp each, so that within an expert they keep their
// order.
constexpr int64_t kChunk = 512;

// Calls visit(copy, expert, rank) for each copy of the chunk, in order; rank counts the copies of that expert
// before it in the chunk. `seen` holds one counter per expert, all zero.
template <class Visit>
__device__ void walk_chunk(const int64_t* experts, int64_t copies, int32_t* seen, Visit visit) {
  const int lane = threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunk, end = min(copies, begin + kChunk);
  int ahead[kChunk / 32];  // all loads are on their way before the first is used
#pragma unroll
  for (int i = 0; i < kChunk / 32; ++i) {
    const int64_t copy = begin + 32 * i + lane;
    ahead[i] = copy < end ? static_cast<int>(experts[copy]) : -1;
  }
#pragma unroll
  for (int i = 0; i < kChunk / 32; ++i) {
    const int64_t copy = begin + 32 * i + lane;
    if (copy - lane >= end) break;
    const int expert = ahead[i];
    unsigned same = __match_any_sync(0xffffffffu, expert);
    int before = __popc(same & ((1u << lane) - 1u));
    int32_t rank = expert >= 0 ? seen[expert] + before : 0;
    __syncwarp();
    if (expert >= 0 && before == 0) seen[expert] += __popc(same);
    __syncwarp();
    if (copy < end) visit(copy, expert, rank);
  }
}

__global__ void count_kernel(const int64_t* experts, int64_t copies, int count, int32_t* chunk_counts) {
  extern __shared__ int32_t seen[];
  for (int e = threadIdx.x; e < count; e += 32) seen[e] = 0;
  __syncwarp();
  walk_chunk(experts, copies, seen, [](int64_t, int, int32_t) {});
  for (int e = threadIdx.x; e < count; e += 32)
    chunk_counts[static_cast<int64_t>(blockIdx.x) * count + e] = seen[e];
}

constexpr int kOffsetThreads = 1024;

// One block. Turns the counts of the chunks into the row at which each chunk's copies of an expert begin.
__global__ void __launch_bounds__(kOffsetThreads)
    offsets_kernel(int32_t* chunk_counts, int64_t chunks, int count, int64_t alignment, int32_t* offsets) {
  extern __shared__ int32_t totals[];
  for (int e = threadIdx.x; e < count; e += blockDim.x) {
    int32_t sum = 0;
    constexpr int kAhead = 8;
    for (int64_t first = 0; first < chunks; first += kAhead) {
      int32_t here[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        here[i] = first + i < chunks ? chunk_counts[(first + i) * count + e] : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < chunks) chunk_counts[(first + i) * count + e] = sum;
        sum += here[i];
      }
    }
    totals[e] = static_cast<int32_t>((sum + alignment - 1) / alignment * alignment);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t begin = 0;
    for (int e = 0; e < count; ++e) {
      offsets[e] = begin;
      begin += totals[e];
    }
    offsets[count] = begin;
  }
}

__global__ void place_kernel(const int64_t* experts, int64_t copies, int count, const int32_t* chunk_begins,
                             const int32_t* offsets, int64_t capacity, int64_t* row_of_copy,
                             int64_t* copy_of_row) {
  extern __shared__ int32_t seen[];
  for (int e = threadIdx.x; e < count; e += 32) seen[e] = 0;
  __syncwarp();
  const int32_t* begins = chunk_begins + static_cast<int64_t>(blockIdx.x) * count;
  walk_chunk(experts, copies, seen, [&](int64_t copy, int expert, int32_t rank) {
    int64_t row = expert < 0 ? -1 : int64_t{offsets[expert]} + begins[expert] + rank;
    row_of_copy[copy] = row;
    if (row >= 0 && row < capacity) copy_of_row[row] = copy;
  });
}

void expert_sort(const KernelContext& ctx, const ExpertSortArgs& args) {
  int64_t copies = args.experts.numel(), chunks = std::max<int64_t>((copies + kChunk - 1) / kChunk, 1);
  int count = static_cast<int>(args.offsets.numel()) - 1;
  cudaStream_t stream = stream_of(ctx);
  Scratch scratch(ctx, static_cast<size_t>(chunks) * count * sizeof(int32_t));
  size_t shared = static_cast<size_t>(count) * sizeof(int32_t);
  unsigned blocks = static_cast<unsigned>(chunks);
  const int64_t* experts = pointer<int64_t>(args.experts);
  if (args.copy_of_row.numel())
    check_cuda(cudaMemsetAsync(args.copy_of_row.raw(), 0xff, args.copy_of_row.bytes(), stream),
               "clearing the rows of experts");
  count_kernel<<<blocks, 32, shared, stream>>>(experts, copies, count, scratch.as<int32_t>());
  check_launch("expert_sort");
  offsets_kernel<<<1, kOffsetThreads, shared, stream>>>(scratch.as<int32_t>(), chunks, count, args.alignment,
                                                        pointer<int32_t>(args.offsets));
  check_launch("expert_sort");
  place_kernel<<<blocks, 32, shared, stream>>>(
      experts, copies, count, scratch.as<int32_t>(), pointer<int32_t>(args.offsets), args.copy_of_row.numel(),
      pointer<int64_t>(args.row_of_copy), pointer<int64_t>(args.copy_of_row));
  check_launch("expert_sort");
}

void permute(const KernelContext& ctx, const PermuteArgs& args) {
  gather(ctx, args.source, args.copy_of_row, args.out, 0, args.k);
}

template <class T, int W>
__global__ void unpermute_kernel(const T* source, const int64_t* row_of_copy, AnyFloat weights, T* out,
                                 int64_t columns, int64_t k) {
  using C = Compute<T>;
  int64_t token = blockIdx.x;
  for (int64_t c = threadIdx.x * W; c < columns; c += blockDim.x * W) {
    C sum[W] = {};
    for (int64_t choice = 0; choice < k; ++choice) {
      int64_t row = row_of_copy[token * k + choice];
      if (row < 0) continue;
      C weight = weights.data ? static_cast<C>(weights.get(token * k + choice)) : C(1), x[W];
      load(x, source + row * columns + c);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += weight * x[j];
    }
    store(out + token * columns + c, sum);
  }
}

void unpermute(const KernelContext& ctx, const UnpermuteArgs& args) {
  if (args.out.numel() == 0) return;
  int64_t tokens = args.out.size(0), columns = args.out.numel() / tokens;
  dispatch_float("unpermute", args.out.dtype(), [&]<class T>(Type<T>) {
    auto launch = [&]<int W>(std::integral_constant<int, W>) {
      unpermute_kernel<T, W><<<static_cast<unsigned>(tokens), row_threads(columns, W), 0, stream_of(ctx)>>>(
          pointer<T>(args.source), pointer<int64_t>(args.row_of_copy), any_float(args.weights),
          pointer<T>(args.out), columns, args.k);
    };
    if (columns % kVector<T> == 0 && aligned(pointer<T>(args.source)) && aligned(pointer<T>(args.out)))
      launch(std::integral_constant<int, kVector<T>>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("unpermute");
}

// One block per row. Each copy has one row, so that its weight's gradient is written by one block.
template <class T, int W>
__global__ void unpermute_backward_kernel(const T* grad, const T* source, const int64_t* copy_of_row,
                                          AnyFloat weights, T* dsource, AnyFloat dweights, int64_t columns,
                                          int64_t k) {
  using C = Compute<T>;
  int64_t row = blockIdx.x, copy = copy_of_row[row], token = copy / k;
  C weight = copy >= 0 && weights.data ? static_cast<C>(weights.get(copy)) : C(1), along = 0;
  for (int64_t c = threadIdx.x * W; c < columns; c += blockDim.x * W) {
    C g[W] = {}, x[W];
    if (copy >= 0) {
      load(g, grad + token * columns + c);
      if (dweights.data) {
        load(x, source + row * columns + c);
#pragma unroll
        for (int j = 0; j < W; ++j) along += g[j] * x[j];
      }
#pragma unroll
      for (int j = 0; j < W; ++j) g[j] *= weight;
    }
    if (dsource) store(dsource + row * columns + c, g);
  }
  if (!dweights.data) return;
  along = block_sum(along);
  if (threadIdx.x == 0 && copy >= 0) dweights.set(copy, along);
}

void unpermute_backward(const KernelContext& ctx, const UnpermuteBackwardArgs& args) {
  cudaStream_t stream = stream_of(ctx);
  if (args.dweights && args.dweights.numel())  // dropped copies have none
    check_cuda(cudaMemsetAsync(args.dweights.raw(), 0, args.dweights.bytes(), stream), "zeroing GPU memory");
  int64_t rows = args.copy_of_row.numel();
  if (rows == 0 || args.grad.numel() == 0) return;
  int64_t columns = args.grad.numel() / args.grad.size(0);
  dispatch_float("unpermute_backward", args.grad.dtype(), [&]<class T>(Type<T>) {
    T *grad = pointer<T>(args.grad), *source = pointer<T>(args.source), *dsource = pointer<T>(args.dsource);
    auto launch = [&]<int W>(std::integral_constant<int, W>) {
      unpermute_backward_kernel<T, W><<<static_cast<unsigned>(rows), row_threads(columns, W), 0, stream>>>(
          grad, source, pointer<int64_t>(args.copy_of_row), any_float(args.weights), dsource,
          any_float(args.dweights), columns, args.k);
    };
    if (columns % kVector<T> == 0 && aligned(grad) && aligned(source) && aligned(dsource))
      launch(std::integral_constant<int, kVector<T>>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("unpermute_backward");
}

}  // namespace

void add_moe_kernels(KernelTable& table) {
  table.expert_sort = expert_sort;
  table.permute = permute;
  table.unpermute = unpermute;
  table.unpermute_backward = unpermute_backward;
}

}  // namespace megatron::cuda
