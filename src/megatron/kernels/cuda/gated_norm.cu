#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::cuda {
namespace {

constexpr int kLanes = 32, kLines = 8;  // of a block: a line of threads takes a row, or sums over tokens

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

  // Whether all of it lies so that vectors can be read.
  bool vectors() const {
    return (x_stride | gate_stride | dy_stride | size) % kVector<T> == 0 && aligned(x) && aligned(gate) &&
           aligned(weight) && aligned(dy);
  }

  // A row of this line of threads, if there is one.
  struct Row {
    int64_t index, token, group;
    bool exists;
  };
  __device__ Row row() const {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kLines + threadIdx.y,
                  token = divide(index, groups);
    return {index, token, index - token * groups, index < tokens * groups};
  }
  unsigned row_blocks() const { return blocks_for(tokens * groups, kLines); }

  // W elements, from channel j of a group on.
  template <int W>
  struct Values {
    C x[W], gate[W], open[W], slope[W], weight[W], dy[W];
  };
  template <int W>
  __device__ Values<W> at(int64_t token, int64_t group, int64_t j) const {
    const int64_t column = group * size + j;
    Values<W> v{};
    load(v.x, x + token * x_stride + column);
    load(v.gate, gate + token * gate_stride + column);
    if (weight) load(v.weight, weight + (shared_weight ? j : column));
    if (dy) load(v.dy, dy + token * dy_stride + column);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const C s = sigmoid<kRough<T>>(v.gate[i]);
      v.open[i] = v.gate[i] * s;
      v.slope[i] = s * (C(1) + v.gate[i] * (C(1) - s));
    }
    return v;
  }
  template <int W>
  __device__ C input(const Values<W>& v, int i) const {  // of the norm
    return gate_first ? v.x[i] * v.open[i] : v.x[i];
  }
  template <int W>
  __device__ C factor(const Values<W>& v, int i) const {
    return gate_first ? v.weight[i] : v.weight[i] * v.open[i];
  }
};

template <class C>
__device__ C reciprocal(C squares, int64_t width, double epsilon) {
  return C(1) / sqrt(squares / C(width) + C(epsilon));
}

template <class T, int W>
__global__ void __launch_bounds__(kLanes* kLines) sums_kernel(GatedRows<T> rows, Compute<T>* sums) {
  const auto row = rows.row();
  if (!row.exists) return;
  Compute<T> sum = 0;
#pragma unroll 2
  for (int64_t j = threadIdx.x * W; j < rows.size; j += kLanes * W) {
    auto v = rows.template at<W>(row.token, row.group, j);
#pragma unroll
    for (int i = 0; i < W; ++i)
      sum += rows.dy ? v.dy[i] * rows.factor(v, i) * rows.input(v, i) : rows.input(v, i) * rows.input(v, i);
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) sums[row.index] = sum;
}

template <class T, int W>
__global__ void __launch_bounds__(kLanes* kLines)
    forward_kernel(GatedRows<T> rows, const Compute<T>* squares, int64_t width, double epsilon, T* y) {
  const auto row = rows.row();
  if (!row.exists) return;
  const Compute<T> rstd = reciprocal(squares[row.index], width, epsilon);
  T* out = y + row.index * rows.size;
#pragma unroll 2
  for (int64_t j = threadIdx.x * W; j < rows.size; j += kLanes * W) {
    auto v = rows.template at<W>(row.token, row.group, j);
    Compute<T> result[W];
#pragma unroll
    for (int i = 0; i < W; ++i) result[i] = rows.input(v, i) * rstd * rows.factor(v, i);
    store(out + j, result);
  }
}

template <class T, int W>
__global__ void __launch_bounds__(kLanes* kLines)
    backward_kernel(GatedRows<T> rows, const Compute<T>* squares, const Compute<T>* along, int64_t width,
                    double epsilon, T* dx, T* dgate) {
  using C = Compute<T>;
  const auto row = rows.row();
  if (!row.exists) return;
  const C rstd = reciprocal(squares[row.index], width, epsilon);
  const C pull = along[row.index] * rstd * rstd * rstd / C(width);
  const int64_t first = row.index * rows.size;
  for (int64_t j = threadIdx.x * W; j < rows.size; j += kLanes * W) {
    auto v = rows.template at<W>(row.token, row.group, j);
    C to_x[W], to_gate[W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const C du = rstd * v.dy[i] * rows.factor(v, i) - rows.input(v, i) * pull;
      to_x[i] = rows.gate_first ? du * v.open[i] : du;
      to_gate[i] =
          rows.gate_first ? du * v.x[i] * v.slope[i] : v.dy[i] * v.x[i] * rstd * v.weight[i] * v.slope[i];
    }
    store(dx + first + j, to_x);
    store(dgate + first + j, to_gate);
  }
}

// partial[blockIdx.y, column]: sums over every gridDim.y-th group of tokens.
template <class T, int W>
__global__ void __launch_bounds__(kLanes* kLines)
    dweight_kernel(GatedRows<T> rows, const Compute<T>* squares, int64_t width, double epsilon,
                   int64_t columns, Compute<T>* partial) {
  using C = Compute<T>;
  constexpr int kColumns = kLanes * W;
  __shared__ C shared[kLines][kColumns + 4];
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kColumns, column = column0 + threadIdx.x * W;
  const int64_t repeats = rows.shared_weight ? rows.groups : 1;
  const int64_t own = rows.shared_weight ? 0 : divide(column, rows.size), j = column - own * rows.size;
  C sum[W] = {};
  if (column < columns)
    for (int64_t t = int64_t{blockIdx.y} * kLines + threadIdx.y; t < rows.tokens;
         t += int64_t{gridDim.y} * kLines)
      for (int64_t r = 0; r < repeats; ++r) {
        const int64_t group = own + r;
        auto v = rows.template at<W>(t, group, j);
        const C rstd = reciprocal(squares[t * rows.groups + group], width, epsilon);
#pragma unroll
        for (int i = 0; i < W; ++i)
          sum[i] += v.dy[i] * rows.input(v, i) * rstd * (rows.gate_first ? C(1) : v.open[i]);
      }
#pragma unroll
  for (int i = 0; i < W; ++i) shared[threadIdx.y][threadIdx.x * W + i] = sum[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y * kLanes + threadIdx.x); c < kColumns; c += kLanes * kLines) {
    if (column0 + c >= columns) break;
    C total = 0;
    for (int line = 0; line < kLines; ++line) total += shared[line][c];
    partial[blockIdx.y * columns + column0 + c] = total;
  }
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

// f(std::integral_constant<int, W>): vectors where all lies well, else single elements.
template <class T, class F>
void for_width(bool vectors, F&& f) {
  if (vectors)
    f(std::integral_constant<int, kVector<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}

void gated_norm_sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  if (args.sums.numel() == 0) return;
  dispatch_float("gated_norm_sums", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.sums, args.dy);
    for_width<T>(rows.vectors(), [&]<int W>(std::integral_constant<int, W>) {
      sums_kernel<T, W><<<rows.row_blocks(), dim3(kLanes, kLines), 0, stream_of(ctx)>>>(
          rows, pointer<Compute<T>>(args.sums));
    });
  });
  check_launch("gated_norm_sums");
}

void gated_norm(const KernelContext& ctx, const GatedNormArgs& args) {
  if (args.y.numel() == 0) return;
  dispatch_float("gated_norm", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.squares, {});
    for_width<T>(rows.vectors() && aligned(args.y.raw()), [&]<int W>(std::integral_constant<int, W>) {
      forward_kernel<T, W><<<rows.row_blocks(), dim3(kLanes, kLines), 0, stream_of(ctx)>>>(
          rows, pointer<Compute<T>>(args.squares), args.width, args.epsilon, pointer<T>(args.y));
    });
  });
  check_launch("gated_norm");
}

void gated_norm_backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  dispatch_float("gated_norm_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    GatedRows<T> rows(args, args.squares, args.dy);
    cudaStream_t stream = stream_of(ctx);
    const C* squares = pointer<C>(args.squares);
    const dim3 block(kLanes, kLines);
    T *dx = pointer<T>(args.dx), *dgate = pointer<T>(args.dgate);
    const bool vectors = rows.vectors() && aligned(dx) && aligned(dgate);
    if (rows.tokens > 0)
      for_width<T>(vectors, [&]<int W>(std::integral_constant<int, W>) {
        backward_kernel<T, W><<<rows.row_blocks(), block, 0, stream>>>(rows, squares, pointer<C>(args.along),
                                                                       args.width, args.epsilon, dx, dgate);
        check_launch("gated_norm_backward");
      });
    if (!args.dweight.defined()) return;
    const int64_t columns = args.dweight.numel();
    const int parts = static_cast<int>(std::clamp<int64_t>(rows.tokens / 128, 1, 128));
    Scratch partial(ctx, static_cast<size_t>(parts * columns) * sizeof(C));
    for_width<T>(vectors, [&]<int W>(std::integral_constant<int, W>) {
      dim3 grid(blocks_for(columns, kLanes * W), parts);
      dweight_kernel<T, W>
          <<<grid, block, 0, stream>>>(rows, squares, args.width, args.epsilon, columns, partial.as<C>());
      check_launch("gated_norm_backward");
    });
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
