#include "megatron/kernels/cuda/quantize/fp8_tile.cuh"

// fp8 with a scale per 1 × 128 or 128 × 128, the matrix and its transposed together.
namespace megatron::cuda {
namespace {

struct Scales {
  float* data;
  int64_t down, across;  // strides

  explicit Scales(const Tensor& scales)
      : data(pointer<float>(scales)), down(scales.stride(0)), across(scales.stride(1)) {}
  __device__ float& at(int64_t row, int64_t column) const { return data[row * down + column * across]; }
};

// 0, whose inverse is infinite, where something is not finite.
template <class Q>
__device__ __forceinline__ float power_of_two_for(float amax) {
  if (!(amax < INFINITY)) return 0;
  const float factor = amax == 0 ? 1.f : fminf(kLargest<Q> / amax, 0x1p126f);
  return __int_as_float(__float_as_int(factor) & 0x7f800000);
}

// A tile is read once: it stays in registers until the scales of its rows and columns are known.
template <class T, class Q, bool kSquares>
__global__ void __launch_bounds__(kThreads, 3)
    tile_kernel(const T* x, Q* q, Q* transposed, Scales row_scales, Scales column_scales, int64_t rows,
                int64_t columns) {
  constexpr uint32_t kMagnitude = 0x7fff7fffu;  // compared as bits, so that NaN is the largest
  constexpr int kSize = Fp8Tile::kSize;
  __shared__ uint32_t transposed_tile[kSize * Fp8Tile::kPitch];
  __shared__ uint32_t row_amax[4][kSize / 2], column_amax[2][kSize / 2];  // of the warps that share one
  __shared__ alignas(16) float row_factor[kSize], column_factor[kSize];
  const Fp8Tile tile(rows, columns);
  uint32_t raw[2][4][4];
  tile.load(raw, x);

  uint32_t down[4] = {};  // the largest of each of eight columns
#pragma unroll
  for (int pass = 0; pass < 2; ++pass)
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      uint32_t across[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t size = raw[pass][r + i][j] & kMagnitude;
          across[i] = __vmaxu2(across[i], size);
          down[j] = __vmaxu2(down[j], size);
        }
      // Both halves of both rows to one word with a half for each row.
      uint32_t two =
          __vmaxu2(__byte_perm(across[0], across[1], 0x5410), __byte_perm(across[0], across[1], 0x7632));
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2)
        two = __vmaxu2(two, __shfl_xor_sync(0xffffffffu, two, offset));
      if (tile.lane % 4 == 0) row_amax[tile.warp % 4][(pass * 64 + tile.row + r) / 2] = two;
    }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2)
      down[j] = __vmaxu2(down[j], __shfl_xor_sync(0xffffffffu, down[j], offset));
    if (tile.lane / 4 == 0) column_amax[tile.warp / 4][tile.column / 2 + j] = down[j];
  }
  __syncthreads();
  const int i = threadIdx.x % kSize;
  if constexpr (kSquares) {
    const uint32_t two = __vmaxu2(column_amax[0][i / 2], column_amax[1][i / 2]);
    const uint32_t amax = block_reduce(max(two & 0xffffu, two >> 16), Maximum<uint32_t>{}, 0u);
    const float factor = power_of_two_for<Q>(low<T>(amax));
    row_factor[i] = column_factor[i] = factor;
    if (threadIdx.x == 0)
      row_scales.at(tile.down, tile.across) = column_scales.at(tile.across, tile.down) = 1 / factor;
  } else if (threadIdx.x < kSize) {
    uint32_t two = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) two = __vmaxu2(two, row_amax[w][i / 2]);
    row_factor[i] = power_of_two_for<Q>(i % 2 ? high<T>(two) : low<T>(two));
    const int64_t row = tile.down * kSize + i;
    if (row < rows) row_scales.at(row, tile.across) = 1 / row_factor[i];
  } else {
    const uint32_t two = __vmaxu2(column_amax[0][i / 2], column_amax[1][i / 2]);
    column_factor[i] = power_of_two_for<Q>(i % 2 ? high<T>(two) : low<T>(two));
    const int64_t column = tile.across * kSize + i;
    if (column < columns) column_scales.at(column, tile.down) = 1 / column_factor[i];
  }
  __syncthreads();

  const auto by_column = read<8>(column_factor + tile.column);
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    const auto by_row = read<4>(row_factor + pass * 64 + tile.row);
    uint32_t other[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[2 * j] = low<T>(raw[pass][r][j]), v[2 * j + 1] = high<T>(raw[pass][r][j]);
      const float f = by_row.v[r];
      const Vec<uint32_t, 2> word{{cast4<Q>(v[0] * f, v[1] * f, v[2] * f, v[3] * f),
                                   cast4<Q>(v[4] * f, v[5] * f, v[6] * f, v[7] * f)}};
      if (tile.has(pass)) write(reinterpret_cast<uint32_t*>(q + tile.index(pass, r)), word);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float *c = by_column.v + 4 * half, *w = v + 4 * half;
        other[r][half] =
            kSquares ? word.v[half] : cast4<Q>(w[0] * c[0], w[1] * c[1], w[2] * c[2], w[3] * c[3]);
      }
    }
    tile.turn(transposed_tile, other, pass);
  }
  __syncthreads();
  tile.store_transposed(transposed_tile, transposed);
}

// Any dtype and shape, one of the two forms, a thread block per block. x is read by strides.
template <class T, class Q>
__global__ void any_kernel(const T* x, int64_t row_stride, int64_t column_stride, Q* q, Scales scales,
                           int64_t rows, int64_t columns, int64_t block_rows) {
  const int64_t row0 = blockIdx.x * block_rows, column0 = static_cast<int64_t>(blockIdx.y) * 128;
  const int64_t width = min(int64_t{128}, columns - column0), n = min(block_rows, rows - row0) * width;
  auto value = [&](int64_t i) {
    return static_cast<float>(
        widen(x[(row0 + i / width) * row_stride + (column0 + i % width) * column_stride]));
  };
  int amax = 0;  // as bits
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) amax = max(amax, __float_as_int(fabsf(value(i))));
  const float factor = power_of_two_for<Q>(__int_as_float(block_reduce(amax, Maximum<int>{}, 0)));
  if (threadIdx.x == 0) scales.at(blockIdx.x, blockIdx.y) = 1 / factor;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    q[(row0 + i / width) * columns + column0 + i % width] = Q(value(i) * factor);  // saturates
}

template <class T, class Q>
void quantize_by_blocks(const KernelContext& ctx, const QuantizeBlocksArgs& args) {
  cudaStream_t stream = stream_of(ctx);
  const T* x = pointer<T>(args.x);
  Q *q = pointer<Q>(args.q), *transposed = pointer<Q>(args.transposed);
  const Scales scales(args.inverse_scale), transposed_tile(args.transposed_inverse_scale);
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  if constexpr (sizeof(T) == 2)
    if (columns % 8 == 0 && rows % 4 == 0 && aligned(x) && aligned(q, 8) && aligned(transposed, 4)) {
      const dim3 grid(blocks_for(columns, Fp8Tile::kSize), blocks_for(rows, Fp8Tile::kSize));
      auto kernel = args.block_rows == 1 ? tile_kernel<T, Q, false> : tile_kernel<T, Q, true>;
      kernel<<<grid, kThreads, 0, stream>>>(x, q, transposed, scales, transposed_tile, rows, columns);
      return check_launch("quantize_blocks");
    }
  auto any = [&](int64_t down, int64_t across, int64_t height, int64_t width, Q* to, const Scales& by) {
    const dim3 grid(blocks_for(height, args.block_rows), blocks_for(width, 128));
    any_kernel<T, Q><<<grid, 128, 0, stream>>>(x, down, across, to, by, height, width, args.block_rows);
    check_launch("quantize_blocks");
  };
  any(columns, 1, rows, columns, q, scales);
  any(1, columns, columns, rows, transposed, transposed_tile);
}

void quantize_blocks(const KernelContext& ctx, const QuantizeBlocksArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("quantize_blocks", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize_blocks", args.q.dtype(),
                 [&]<class Q>(Type<Q>) { quantize_by_blocks<T, Q>(ctx, args); });
  });
}

}  // namespace

void add_quantize_blocks_kernels(KernelTable& table) { table.quantize_blocks = quantize_blocks; }

}  // namespace megatron::cuda
