#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::cuda {
namespace {

constexpr int kColumns = 32, kTokens = 8;  // of a block that sums over tokens

// What all kernels share: rows are (token, group), each of `size` channels.
template <class T>
struct GatedRows {
  using C = Compute<T>;
  const T *x, *gate, *weight, *dy;
  int64_t x_stride, gate_stride, dy_stride, tokens, groups, size;
  bool gate_first, shared_weight;

  template <class Args>
  GatedRows(const Args& args, const Tensor& statistics, const Tensor& dy_tensor)
      : x(pointer<T>(args.x)),
        gate(pointer<T>(args.gate)),
        weight(pointer<T>(args.weight)),
        dy(pointer<T>(dy_tensor)),
        x_stride(args.x.stride(0)),
        gate_stride(args.gate.stride(0)),
        dy_stride(dy_tensor.defined() ? dy_tensor.stride(0) : 0),
        tokens(args.x.size(0)),
        groups(statistics.size(1)),
        size(args.x.size(1) / groups),
        gate_first(args.gate_first),
        shared_weight(args.weight.defined() && args.weight.numel() == size && groups > 1) {}

  // One element, at channel j of a group.
  struct Value {
    C x, gate, open, slope, weight, dy;
  };
  __device__ Value at(int64_t token, int64_t group, int64_t j) const {
    int64_t column = group * size + j;
    Value v{};
    v.x = widen(x[token * x_stride + column]);
    v.gate = widen(gate[token * gate_stride + column]);
    C s = sigmoid<false>(v.gate);
    v.open = v.gate * s;
    v.slope = s * (C(1) + v.gate * (C(1) - s));
    if (weight) v.weight = widen(weight[shared_weight ? j : column]);
    if (dy) v.dy = widen(dy[token * dy_stride + column]);
    return v;
  }
  __device__ C input(const Value& v) const { return gate_first ? v.x * v.open : v.x; }  // of the norm
  __device__ C factor(const Value& v) const { return gate_first ? v.weight : v.weight * v.open; }
};

template <class C>
__device__ C reciprocal(C squares, int64_t width, double epsilon) {
  return C(1) / sqrt(squares / C(width) + C(epsilon));
}

// One block a row.
template <class T>
__global__ void sums_kernel(GatedRows<T> rows, Compute<T>* sums) {
  int64_t token = blockIdx.x / rows.groups, group = blockIdx.x % rows.groups;
  Compute<T> sum = 0;
  for (int64_t j = threadIdx.x; j < rows.size; j += blockDim.x) {
    auto v = rows.at(token, group, j);
    sum += rows.dy ? v.dy * rows.factor(v) * rows.input(v) : rows.input(v) * rows.input(v);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void forward_kernel(GatedRows<T> rows, const Compute<T>* squares, int64_t width, double epsilon,
                               T* y) {
  int64_t token = blockIdx.x / rows.groups, group = blockIdx.x % rows.groups;
  Compute<T> rstd = reciprocal(squares[blockIdx.x], width, epsilon);
  T* out = y + int64_t{blockIdx.x} * rows.size;
  for (int64_t j = threadIdx.x; j < rows.size; j += blockDim.x) {
    auto v = rows.at(token, group, j);
    out[j] = narrow<T>(rows.input(v) * rstd * rows.factor(v));
  }
}

template <class T>
__global__ void backward_kernel(GatedRows<T> rows, const Compute<T>* squares, const Compute<T>* along,
                                int64_t width, double epsilon, T* dx, T* dgate) {
  using C = Compute<T>;
  int64_t token = blockIdx.x / rows.groups, group = blockIdx.x % rows.groups;
  C rstd = reciprocal(squares[blockIdx.x], width, epsilon);
  C pull = along[blockIdx.x] * rstd * rstd * rstd / C(width);
  int64_t first = int64_t{blockIdx.x} * rows.size;
  for (int64_t j = threadIdx.x; j < rows.size; j += blockDim.x) {
    auto v = rows.at(token, group, j);
    C du = rstd * v.dy * rows.factor(v) - rows.input(v) * pull;
    dx[first + j] = narrow<T>(rows.gate_first ? du * v.open : du);
    dgate[first + j] =
        narrow<T>(rows.gate_first ? du * v.x * v.slope : v.dy * v.x * rstd * v.weight * v.slope);
  }
}

// partial[blockIdx.y, column]: sums over every gridDim.y-th group of tokens.
template <class T>
__global__ void __launch_bounds__(kColumns* kTokens)
    dweight_kernel(GatedRows<T> rows, const Compute<T>* squares, int64_t width, double epsilon,
                   int64_t columns, Compute<T>* partial) {
  using C = Compute<T>;
  __shared__ C shared[kTokens][kColumns];
  int lane = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  int64_t repeats = rows.shared_weight ? rows.groups : 1;
  C sum = 0;
  if (column < columns)
    for (int64_t t = int64_t{blockIdx.y} * kTokens + row; t < rows.tokens; t += int64_t{gridDim.y} * kTokens)
      for (int64_t r = 0; r < repeats; ++r) {
        int64_t group = rows.shared_weight ? r : column / rows.size;
        auto v = rows.at(t, group, rows.shared_weight ? column : column % rows.size);
        C rstd = reciprocal(squares[t * rows.groups + group], width, epsilon);
        sum += v.dy * rows.input(v) * rstd * (rows.gate_first ? C(1) : v.open);
      }
  shared[row][lane] = sum;
  __syncthreads();
  if (row != 0 || column >= columns) return;
  C total = 0;
  for (int r = 0; r < kTokens; ++r) total += shared[r][lane];
  partial[blockIdx.y * columns + column] = total;
}

template <class C>
struct FinishOp {
  const C* partial;
  C* out;
  int64_t columns;
  int parts;

  template <int W>
  __device__ void run(int64_t i) const {
    C total = 0;
    for (int part = 0; part < parts; ++part) total += partial[part * columns + i];
    out[i] = total;
  }
};

template <class T>
unsigned row_blocks(const GatedRows<T>& rows) {
  return static_cast<unsigned>(rows.tokens * rows.groups);
}

void gated_norm_sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  if (args.sums.numel() == 0) return;
  dispatch_float("gated_norm_sums", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.sums, args.dy);
    sums_kernel<T><<<row_blocks(rows), row_threads(rows.size, 4), 0, stream_of(ctx)>>>(
        rows, pointer<Compute<T>>(args.sums));
  });
  check_launch("gated_norm_sums");
}

void gated_norm(const KernelContext& ctx, const GatedNormArgs& args) {
  if (args.y.numel() == 0) return;
  dispatch_float("gated_norm", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.squares, {});
    forward_kernel<T><<<row_blocks(rows), row_threads(rows.size, 4), 0, stream_of(ctx)>>>(
        rows, pointer<Compute<T>>(args.squares), args.width, args.epsilon, pointer<T>(args.y));
  });
  check_launch("gated_norm");
}

void gated_norm_backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  dispatch_float("gated_norm_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    GatedRows<T> rows(args, args.squares, args.dy);
    cudaStream_t stream = stream_of(ctx);
    const C* squares = pointer<C>(args.squares);
    if (rows.tokens > 0) {
      backward_kernel<T><<<row_blocks(rows), row_threads(rows.size, 4), 0, stream>>>(
          rows, squares, pointer<C>(args.along), args.width, args.epsilon, pointer<T>(args.dx),
          pointer<T>(args.dgate));
      check_launch("gated_norm_backward");
    }
    if (!args.dweight.defined()) return;
    const int64_t columns = args.dweight.numel();
    const int parts = static_cast<int>(std::clamp<int64_t>(rows.tokens / 128, 1, 128));
    Scratch partial(ctx, static_cast<size_t>(parts * columns) * sizeof(C));
    dim3 grid(blocks_for(columns, kColumns), parts);
    dweight_kernel<T><<<grid, kColumns * kTokens, 0, stream>>>(rows, squares, args.width, args.epsilon,
                                                               columns, partial.as<C>());
    check_launch("gated_norm_backward");
    for_each<1>(ctx, "gated_norm_backward", columns, false,
                FinishOp<C>{partial.as<C>(), pointer<C>(args.dweight), columns, parts});
  });
}

}  // namespace

void add_gated_norm_kernels(KernelTable& table) {
  table.gated_norm_sums = gated_norm_sums;
  table.gated_norm = gated_norm;
  table.gated_norm_backward = gated_norm_backward;
}

}  // namespace megatron::cuda
