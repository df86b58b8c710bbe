#include "megatron/kernels/cuda/quantize/fp8_tile.cuh"

// fp8 with a scale per group of rows, the matrix and its transposed together. Groups begin at multiples of 16
// rows, so that 16 rows belong to one group, or to none.
namespace megatron::cuda {
namespace {

constexpr int kGroupRows = 16;

struct Groups {
  const int32_t* offsets;  // null: `height` rows each
  int count;
  int64_t rows, columns, height;  // of the whole, and of a matrix that is transposed by itself
  const float* scale;             // given, or null
  float *inverse_scale, *amax;    // amax may be null
  int64_t scale_step, amax_step;

  // The group of a row; −1: none.
  __device__ int of(int64_t row) const {
    if (row >= rows) return -1;
    if (!offsets) return static_cast<int>(row / height);
    if (row >= offsets[count]) return -1;
    int first = 0, last = count;  // offsets[first] <= row < offsets[last]
    while (last - first > 1) {
      const int middle = (first + last) / 2;
      (offsets[middle] <= row ? first : last) = middle;
    }
    return first;
  }
};

// What the numbers of a group are multiplied by. amax: of this matrix, where no scale is given.
template <class Q>
__device__ float factor_of(const Groups& groups, const int* amax, int group) {
  if (groups.scale) return groups.scale[group * groups.scale_step];
  const float largest = __int_as_float(amax[group]);
  return largest == 0 ? 1.f : kLargest<Q> / largest;
}

// The largest magnitude of each group, by bits, so that order does not matter and NaN wins. A block has 16
// rows.
template <class T>
__global__ void __launch_bounds__(kThreads) group_amax_kernel(const T* x, Groups groups, int* amax) {
  constexpr int W = kVector<T>, kAhead = 4;
  griddep_launch();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kGroupRows;
  const int group = groups.of(row);
  if (group < 0) return;
  x += row * groups.columns;
  const int64_t vectors = kGroupRows * groups.columns / W;
  int largest = 0;
  auto take = [&](const Vec<T, W>& raw) {
#pragma unroll
    for (int j = 0; j < W; ++j)
      largest = max(largest, __float_as_int(fabsf(static_cast<float>(widen(raw.v[j])))));
  };
  int64_t v = threadIdx.x;
  for (; v + (kAhead - 1) * kThreads < vectors; v += kAhead * kThreads) {
    Vec<T, W> raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) raw[k] = read<W>(x + (v + k * kThreads) * W);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) take(raw[k]);
  }
  for (; v < vectors; v += kThreads) take(read<W>(x + v * W));
  largest = block_reduce(largest, Maximum<int>{}, 0);
  if (threadIdx.x == 0) atomicMax(amax + group, largest);
}

// A tile of 128 × 128 a block, the rows of the grid in its first dimension.
template <class T, class Q>
__global__ void __launch_bounds__(kThreads)
    group_cast_kernel(const T* x, Q* q, Q* transposed, const int* amax, Groups groups, int64_t across) {
  constexpr int kParts = Fp8Tile::kSize / kGroupRows;
  __shared__ uint32_t transposed_tile[Fp8Tile::kSize * Fp8Tile::kPitch];
  __shared__ float factor[kParts];
  __shared__ int group_of[kParts], largest_of[kParts];
  const Fp8Tile tile(groups.rows, groups.columns, gridDim.x / across - 1 - blockIdx.x / across,
                     blockIdx.x % across);
  uint32_t raw[2][4][4];
  tile.load(raw, x);
  if (threadIdx.x < kParts)
    group_of[threadIdx.x] = groups.of(tile.down * Fp8Tile::kSize + threadIdx.x * kGroupRows);
  griddep_wait();  // for amax
  if (threadIdx.x < kParts) {
    const int group = group_of[threadIdx.x];
    factor[threadIdx.x] = group < 0 ? 0.f : factor_of<Q>(groups, amax, group);
    largest_of[threadIdx.x] = 0;
  }
  if (blockIdx.x == 0)
    for (int g = threadIdx.x; g < groups.count; g += kThreads)
      groups.inverse_scale[g] = 1.f / factor_of<Q>(groups, amax, g);
  __syncthreads();
  const bool has_amax = groups.amax != nullptr;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    const int part = (pass * 64 + tile.row) / kGroupRows;
    const bool there = tile.has(pass) && group_of[part] >= 0;
    const float f = factor[part];
    uint32_t word[4][2];
    int largest = 0;  // as bits
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[2 * j] = low<T>(raw[pass][r][j]), v[2 * j + 1] = high<T>(raw[pass][r][j]);
      if (has_amax)
#pragma unroll
        for (int j = 0; j < 8; ++j) largest = max(largest, __float_as_int(fabsf(v[j])));
      word[r][0] = cast4<Q>(v[0] * f, v[1] * f, v[2] * f, v[3] * f);
      word[r][1] = cast4<Q>(v[4] * f, v[5] * f, v[6] * f, v[7] * f);
      if (there)
        write(reinterpret_cast<uint32_t*>(q + tile.index(pass, r)), Vec<uint32_t, 2>{word[r][0], word[r][1]});
    }
    if (has_amax) {  // 16 lanes share a part
      largest = there ? largest : 0;
#pragma unroll
      for (int offset = 8; offset; offset /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      if (tile.lane % 16 == 0) atomicMax(largest_of + part, largest);
    }
    tile.turn(transposed_tile, word, pass);
  }
  __syncthreads();
  if (has_amax && threadIdx.x < kParts && group_of[threadIdx.x] >= 0)
    atomicMax(reinterpret_cast<int*>(groups.amax + group_of[threadIdx.x] * groups.amax_step),
              largest_of[threadIdx.x]);
  // Four rows of a column are a word; height is a multiple of 16.
  const int64_t first = tile.down * Fp8Tile::kSize + tile.lane * 4;
  if (group_of[tile.lane * 4 / kGroupRows] < 0) return;
  const int64_t matrix = divide(first, groups.height), row = first - matrix * groups.height;
  transposed += matrix * groups.height * groups.columns + row;
#pragma unroll 4
  for (int c = tile.warp; c < Fp8Tile::kSize; c += kThreads / 32)
    if (const int64_t column = tile.across * Fp8Tile::kSize + c; column < groups.columns)
      *reinterpret_cast<uint32_t*>(transposed + column * groups.height) =
          transposed_tile[c * Fp8Tile::kPitch + tile.lane];
}

// Any dtype and alignment, element by element.
template <class T>
struct GroupAmaxOp {
  const T* x;
  Groups groups;
  int* amax;
  template <int W>
  __device__ void run(int64_t i) const {
    const int group = groups.of(i / groups.columns);
    if (group < 0) return;
    atomicMax(amax + group, __float_as_int(fabsf(static_cast<float>(widen(x[i])))));
  }
};

template <class T, class Q>
struct GroupCastOp {
  const T* x;
  Q *q, *transposed;
  const int* amax;
  Groups groups;
  template <int W>
  __device__ void run(int64_t i) const {
    if (i < groups.count) groups.inverse_scale[i] = 1.f / factor_of<Q>(groups, amax, static_cast<int>(i));
    const int64_t row = i / groups.columns, column = i % groups.columns, matrix = row / groups.height;
    const int group = groups.of(row);
    if (group < 0) return;
    const float value = static_cast<float>(widen(x[i]));
    if (groups.amax)
      atomicMax(reinterpret_cast<int*>(groups.amax + group * groups.amax_step), __float_as_int(fabsf(value)));
    q[i] = Q(value * factor_of<Q>(groups, amax, group));  // saturates
    transposed[matrix * groups.height * groups.columns + column * groups.height + row % groups.height] = q[i];
  }
};

template <class T, class Q>
void quantize_groups(const KernelContext& ctx, const QuantizeGroupedArgs& args, const Groups& groups) {
  cudaStream_t stream = stream_of(ctx);
  const T* x = pointer<T>(args.x);
  Q *q = pointer<Q>(args.q), *transposed = pointer<Q>(args.transposed);
  const size_t bytes = static_cast<size_t>(groups.count) * sizeof(int);
  Scratch amax(ctx, bytes);
  if (!groups.scale) check_cuda(cudaMemsetAsync(amax.as<int>(), 0, bytes, stream), "zeroing GPU memory");
  const int64_t numel = groups.rows * groups.columns;
  if constexpr (sizeof(T) == 2)
    if (groups.columns % 8 == 0 && groups.rows % kGroupRows == 0 && aligned(x) && aligned(q, 8) &&
        aligned(transposed, 4)) {
      const int64_t across = (groups.columns + Fp8Tile::kSize - 1) / Fp8Tile::kSize;
      const auto tiles =
          static_cast<unsigned>(across * ((groups.rows + Fp8Tile::kSize - 1) / Fp8Tile::kSize));
      if (groups.scale) {
        group_cast_kernel<T, Q>
            <<<tiles, kThreads, 0, stream>>>(x, q, transposed, amax.as<const int>(), groups, across);
        return check_launch("quantize_grouped");
      }
      group_amax_kernel<T>
          <<<blocks_for(groups.rows, kGroupRows), kThreads, 0, stream>>>(x, groups, amax.as<int>());
      check_launch("quantize_grouped");
      launch_pdl("quantize_grouped", group_cast_kernel<T, Q>, tiles, kThreads, stream, x, q, transposed,
                 amax.as<const int>(), groups, across);
      return;
    }
  if (!groups.scale)
    for_each<1>(ctx, "quantize_grouped", numel, false, GroupAmaxOp<T>{x, groups, amax.as<int>()});
  for_each<1>(ctx, "quantize_grouped", numel, false,
              GroupCastOp<T, Q>{x, q, transposed, amax.as<int>(), groups});
}

void quantize_grouped(const KernelContext& ctx, const QuantizeGroupedArgs& args) {
  if (args.x.numel() == 0) return;
  const int64_t count = args.inverse_scale.size(0), height = args.x.size(-2);
  const auto step = [](const Tensor& t) { return t ? t.stride(0) : 0; };
  const Groups groups{pointer<int32_t>(args.offsets),
                      static_cast<int>(count),
                      args.offsets ? height : height * count,
                      args.x.size(-1),
                      height,
                      pointer<float>(args.scale),
                      pointer<float>(args.inverse_scale),
                      pointer<float>(args.amax),
                      step(args.scale),
                      step(args.amax)};
  dispatch_float("quantize_grouped", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize_grouped", args.q.dtype(),
                 [&]<class Q>(Type<Q>) { quantize_groups<T, Q>(ctx, args, groups); });
  });
}

}  // namespace

void add_quantize_grouped_kernels(KernelTable& table) { table.quantize_grouped = quantize_grouped; }

}  // namespace megatron::cuda
