#include "megatron/kernels/cuda/core/strided.cuh"

namespace megatron::cuda {
namespace {

// A value on its way between dtypes that are known at run time only. Integers stay exact.
struct Scalar {
  double real;
  int64_t integer;
  bool is_integer;
};

__device__ Scalar real_scalar(double value) { return {value, 0, false}; }
__device__ Scalar integer_scalar(int64_t value) { return {static_cast<double>(value), value, true}; }

__device__ Scalar read(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::F64:
      return real_scalar(static_cast<const double*>(data)[i]);
    case DType::F32:
      return real_scalar(static_cast<const float*>(data)[i]);
    case DType::BF16:
      return real_scalar(__bfloat162float(static_cast<const bfloat*>(data)[i]));
    case DType::F16:
      return real_scalar(__half2float(static_cast<const half*>(data)[i]));
    case DType::F8E4M3:
      return real_scalar(static_cast<float>(static_cast<const __nv_fp8_e4m3*>(data)[i]));
    case DType::F8E5M2:
      return real_scalar(static_cast<float>(static_cast<const __nv_fp8_e5m2*>(data)[i]));
    case DType::I64:
      return integer_scalar(static_cast<const int64_t*>(data)[i]);
    case DType::I32:
      return integer_scalar(static_cast<const int32_t*>(data)[i]);
    case DType::I16:
      return integer_scalar(static_cast<const int16_t*>(data)[i]);
    case DType::I8:
      return integer_scalar(static_cast<const int8_t*>(data)[i]);
    default:
      return integer_scalar(static_cast<const uint8_t*>(data)[i]);
  }
}

__device__ void write(void* data, DType dtype, int64_t i, Scalar value) {
  float real = static_cast<float>(value.real);
  int64_t integer = value.is_integer ? value.integer : static_cast<int64_t>(value.real);
  switch (dtype) {
    case DType::F64:
      static_cast<double*>(data)[i] = value.real;
      break;
    case DType::F32:
      static_cast<float*>(data)[i] = real;
      break;
    case DType::BF16:
      static_cast<bfloat*>(data)[i] = __float2bfloat16_rn(real);
      break;
    case DType::F16:
      static_cast<half*>(data)[i] = __float2half_rn(real);
      break;
    case DType::F8E4M3:
      static_cast<uint8_t*>(data)[i] = __nv_cvt_float_to_fp8(real, __NV_NOSAT, __NV_E4M3);
      break;
    case DType::F8E5M2:
      static_cast<uint8_t*>(data)[i] = __nv_cvt_float_to_fp8(real, __NV_NOSAT, __NV_E5M2);
      break;
    case DType::I64:
      static_cast<int64_t*>(data)[i] = integer;
      break;
    case DType::I32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(integer);
      break;
    case DType::I16:
      static_cast<int16_t*>(data)[i] = static_cast<int16_t>(integer);
      break;
    case DType::I8:
      static_cast<int8_t*>(data)[i] = static_cast<int8_t>(integer);
      break;
    case DType::U8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(integer);
      break;
    case DType::Bool:
      static_cast<bool*>(data)[i] = value.is_integer ? value.integer != 0 : value.real != 0;
      break;
  }
}

struct AnyCopyOp {
  const void* source;
  void* target;
  DType from, to;
  StridedIndex<2> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[2];
    index.offsets(i, at);
    write(target, to, at[1], read(source, from, at[0]));
  }
};

template <class T>
struct MoveOp {
  const T* source;
  T* target;
  StridedIndex<2> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[2];
    index.offsets(i, at);
    target[at[1]] = source[at[0]];
  }
};

template <class S, class T>
struct ConvertOp {
  const S* source;
  T* target;
  template <int W>
  __device__ void run(int64_t i) const {
    Compute<S> from[W];
    Compute<T> to[W];
    load(from, source + i);
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = static_cast<Compute<T>>(from[j]);
    store(target + i, to);
  }
};

constexpr int kTile = 32, kTileRows = 8;

// Both sides see a matrix whose rows lie densely on one side and whose columns lie densely on the other.
template <class T>
__global__ void transpose_kernel(const T* source, T* target, int64_t rows, int64_t columns,
                                 int64_t source_stride, int64_t target_stride, int64_t source_batch,
                                 int64_t target_batch) {
  __shared__ T tile[kTile][kTile + 1];
  source += blockIdx.z * source_batch;
  target += blockIdx.z * target_batch;
  int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTile, column0 = static_cast<int64_t>(blockIdx.x) * kTile;
  for (int r = threadIdx.y; r < kTile; r += kTileRows)
    if (row0 + r < rows && column0 + threadIdx.x < columns)
      tile[r][threadIdx.x] = source[(row0 + r) * source_stride + column0 + threadIdx.x];
  __syncthreads();
  for (int c = threadIdx.y; c < kTile; c += kTileRows)
    if (column0 + c < columns && row0 + threadIdx.x < rows)
      target[(column0 + c) * target_stride + row0 + threadIdx.x] = tile[threadIdx.x][c];
}

constexpr int kWideTile = 64;

// Elements of two bytes, 16 bytes of them at a time on both sides; both sizes are multiples of eight. Shared
// memory holds pairs of neighbours in a row; a thread makes eight rows of a pair into eight columns of two
// rows.
__global__ void __launch_bounds__(kThreads)
    transpose_pairs_kernel(const uint16_t* source, uint16_t* target, int64_t rows, int64_t columns,
                           int64_t source_stride, int64_t target_stride, int64_t source_batch,
                           int64_t target_batch) {
  __shared__ uint32_t tile[kWideTile][kWideTile / 2 + 1];
  source += blockIdx.z * source_batch;
  target += blockIdx.z * target_batch;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kWideTile,
                column0 = static_cast<int64_t>(blockIdx.x) * kWideTile;
  const int line = static_cast<int>(threadIdx.x) / 8, eighth = static_cast<int>(threadIdx.x) % 8;
  uint4 words[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (int64_t row = row0 + line + 32 * half; row < rows && column0 + 8 * eighth < columns)
      words[half] = *reinterpret_cast<const uint4*>(source + row * source_stride + column0 + 8 * eighth);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t* to = &tile[line + 32 * half][4 * eighth];
    to[0] = words[half].x, to[1] = words[half].y, to[2] = words[half].z, to[3] = words[half].w;
  }
  __syncthreads();
  uint32_t pair[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) pair[r] = tile[8 * eighth + r][line];
  auto joined = [&](uint32_t which) {
    return Vec<uint32_t, 4>{__byte_perm(pair[0], pair[1], which), __byte_perm(pair[2], pair[3], which),
                            __byte_perm(pair[4], pair[5], which), __byte_perm(pair[6], pair[7], which)};
  };
  const int64_t column = column0 + 2 * line, row = row0 + 8 * eighth;
  if (column >= columns || row >= rows) return;
  uint16_t* to = target + column * target_stride + row;
  write(reinterpret_cast<uint32_t*>(to), joined(0x5410));
  write(reinterpret_cast<uint32_t*>(to + target_stride), joined(0x7632));
}

// Whether the copy is a (batched) matrix transposition; launches it then.
template <class T>
bool transpose(cudaStream_t stream, const CopyArgs& args, const StridedIndex<2>& index) {
  int batched = index.rank - 2;
  if (batched < 0 || batched > 1) return false;
  int r = batched, c = batched + 1;  // target dense in c, source dense in r
  if (index.stride[0][r] != 1 || index.stride[1][c] != 1) return false;
  int64_t rows = index.size[c], columns = index.size[r], batches = batched ? index.size[0] : 1;
  if (rows > int64_t{65535} * kTile || batches > 65535) return false;
  const T* source = pointer<T>(args.source);
  T* target = pointer<T>(args.target);
  const int64_t source_stride = index.stride[0][c], target_stride = index.stride[1][r];
  const int64_t source_batch = batched ? index.stride[0][0] : 0,
                target_batch = batched ? index.stride[1][0] : 0;
  auto grid = [&](int tile) {
    return dim3(blocks_for(columns, tile), blocks_for(rows, tile), static_cast<unsigned>(batches));
  };
  if constexpr (sizeof(T) == 2) {
    const int64_t lengths = rows | columns | source_stride | target_stride | source_batch | target_batch;
    if (lengths % 8 == 0 && aligned(source) && aligned(target)) {
      transpose_pairs_kernel<<<grid(kWideTile), kThreads, 0, stream>>>(
          source, target, rows, columns, source_stride, target_stride, source_batch, target_batch);
      check_launch("copy");
      return true;
    }
  }
  transpose_kernel<T><<<grid(kTile), dim3(kTile, kTileRows), 0, stream>>>(
      source, target, rows, columns, source_stride, target_stride, source_batch, target_batch);
  check_launch("copy");
  return true;
}

// Whether both sides have runs of elements that are whole words of 16 bytes, and all lies at multiples of
// these; counts the index in words then.
bool in_words(const CopyArgs& args, StridedIndex<2>& index) {
  const int last = index.rank - 1;
  if (last < 0 || index.stride[0][last] != 1 || index.stride[1][last] != 1) return false;
  const auto per_word = static_cast<int64_t>(16 / size_of(args.source.dtype()));
  int64_t lengths = index.size[last];
  for (int side = 0; side < 2; ++side)
    for (int d = 0; d < last; ++d) lengths |= index.stride[side][d];
  if (lengths % per_word || !aligned(args.source.raw()) || !aligned(args.target.raw())) return false;
  index.size[last] /= per_word;
  for (int side = 0; side < 2; ++side)
    for (int d = 0; d < last; ++d) index.stride[side][d] /= per_word;
  return true;
}

template <class T>
void move(const KernelContext& ctx, const CopyArgs& args, StridedIndex<2> index) {
  if (in_words(args, index))
    for_each<1>(ctx, "copy", static_cast<int64_t>(args.source.bytes() / 16), false,
                MoveOp<uint4>{pointer<uint4>(args.source), pointer<uint4>(args.target), index});
  else if (!transpose<T>(stream_of(ctx), args, index))
    for_each<1>(ctx, "copy", args.source.numel(), false,
                MoveOp<T>{pointer<T>(args.source), pointer<T>(args.target), index});
}

bool plain_float(DType dtype) { return dtype <= DType::F16; }

void copy(const KernelContext& ctx, const CopyArgs& args) {
  const Tensor &source = args.source, &target = args.target;
  int64_t n = source.numel();
  if (n == 0) return;
  bool dense = source.is_contiguous() && target.is_contiguous();
  if (dense && source.dtype() == target.dtype()) {
    check_cuda(
        cudaMemcpyAsync(target.raw(), source.raw(), source.bytes(), cudaMemcpyDeviceToDevice, stream_of(ctx)),
        "copying on the GPU");
    return;
  }
  if (dense && plain_float(source.dtype()) && plain_float(target.dtype())) {
    dispatch_float("copy", source.dtype(), [&]<class S>(Type<S>) {
      dispatch_float("copy", target.dtype(), [&]<class T>(Type<T>) {
        constexpr int W = 16 / static_cast<int>(std::max(sizeof(S), sizeof(T)));
        ConvertOp<S, T> op{pointer<S>(source), pointer<T>(target)};
        for_each<W>(ctx, "copy", n, aligned(op.source) && aligned(op.target), op);
      });
    });
    return;
  }
  StridedIndex<2> index(source.shape(), {&source.strides(), &target.strides()});
  if (source.dtype() == target.dtype()) {
    switch (size_of(source.dtype())) {
      case 1:
        return move<uint8_t>(ctx, args, index);
      case 2:
        return move<uint16_t>(ctx, args, index);
      case 4:
        return move<uint32_t>(ctx, args, index);
      default:
        return move<uint64_t>(ctx, args, index);
    }
  }
  for_each<1>(ctx, "copy", n, false,
              AnyCopyOp{source.raw(), target.raw(), source.dtype(), target.dtype(), index});
}

template <class C>
__device__ bool compared(Comparison kind, C a, C b) {
  switch (kind) {
    case Comparison::Equal:
      return a == b;
    case Comparison::NotEqual:
      return a != b;
    case Comparison::Less:
      return a < b;
    default:
      return a <= b;
  }
}

struct CompareOp {
  Comparison kind;
  const void *a, *b;
  bool* out;
  DType dtype;
  StridedIndex<2> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[2];
    index.offsets(i, at);
    Scalar x = read(a, dtype, at[0]), y = read(b, dtype, at[1]);
    out[i] = x.is_integer ? compared(kind, x.integer, y.integer) : compared(kind, x.real, y.real);
  }
};

void compare(const KernelContext& ctx, const CompareArgs& args) {
  for_each<1>(ctx, "compare", args.out.numel(), false,
              CompareOp{args.kind,
                        pointer<void>(args.a),
                        pointer<void>(args.b),
                        pointer<bool>(args.out),
                        args.a.dtype(),
                        {args.out.shape(), {&args.a.strides(), &args.b.strides()}}});
}

struct FillOp {
  void* out;
  DType dtype;
  double value;
  StridedIndex<1> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[1];
    index.offsets(i, at);
    write(out, dtype, at[0], real_scalar(value));
  }
};

template <class T>
struct DenseFillOp {
  T* out;
  double value;
  template <int W>
  __device__ void run(int64_t i) const {
    Compute<T> values[W];
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = static_cast<Compute<T>>(value);
    store(out + i, values);
  }
};

void fill(const KernelContext& ctx, const FillArgs& args) {
  const Tensor& out = args.out;
  int64_t n = out.numel();
  if (n == 0) return;
  if (out.is_contiguous() && args.value == 0) {
    check_cuda(cudaMemsetAsync(out.raw(), 0, out.bytes(), stream_of(ctx)), "zeroing GPU memory");
    return;
  }
  if (out.is_contiguous() && plain_float(out.dtype())) {
    dispatch_float("fill", out.dtype(), [&]<class T>(Type<T>) {
      for_each<kVector<T>>(ctx, "fill", n, aligned(out.raw()), DenseFillOp<T>{pointer<T>(out), args.value});
    });
    return;
  }
  for_each<1>(ctx, "fill", n, false,
              FillOp{out.raw(), out.dtype(), args.value, {out.shape(), {&out.strides()}}});
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
  table.copy = copy;
  table.fill = fill;
  table.compare = compare;
}

}  // namespace megatron::cuda
