#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::cuda {
namespace {

template <class C>
__global__ void rope_table_kernel(const int64_t* positions, AnyFloat inverse, C* cos_out, C* sin_out,
                                  int64_t tokens, int64_t frequencies, double amplitude, bool three,
                                  int64_t section0, int64_t section1) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * frequencies) return;
  int64_t t = i / frequencies, f = i - t * frequencies;
  int row = !three || f < section0 ? 0 : (f < section0 + section1 ? 1 : 2);
  // The angle is rounded to the table's type, as reference models have it.
  C angle = static_cast<C>(positions[row * tokens + t]) * static_cast<C>(inverse.get(f));
  cos_out[i] = static_cast<C>(cos(static_cast<double>(angle)) * amplitude);
  sin_out[i] = static_cast<C>(sin(static_cast<double>(angle)) * amplitude);
}

void rope_table(const KernelContext& ctx, const RopeTableArgs& args) {
  int64_t tokens = args.cos.size(0), frequencies = args.cos.size(1);
  if (args.cos.numel() == 0) return;
  auto run = [&]<class C>(Type<C>) {
    rope_table_kernel<C><<<blocks_for(tokens * frequencies, kThreads), kThreads, 0, stream_of(ctx)>>>(
        pointer<int64_t>(args.positions), any_float(args.inverse_frequencies), pointer<C>(args.cos),
        pointer<C>(args.sin), tokens, frequencies, args.amplitude, args.positions.rank() == 2,
        args.sections[0], args.sections[1]);
  };
  if (args.cos.dtype() == DType::F64)
    run(Type<double>{});
  else
    run(Type<float>{});
  check_launch("rope_table");
}

// A head is cut into units: first those of W pairs of channels that turn together, then those of W channels
// that are only copied.
struct HeadShape {
  int64_t channels, half;
  bool interleaved;
  template <int W>
  __host__ __device__ int64_t units() const {
    return (channels - half) / W;
  }
};

template <class T, int W>
__device__ __forceinline__ void turn_unit(const T* from, T* to, const Compute<T>* cos, const Compute<T>* sin,
                                          HeadShape head, int64_t unit, Compute<T> sign) {
  using C = Compute<T>;
  int64_t first = unit * W;
  if (first >= head.half) {
    int64_t at = head.half + first;
    *reinterpret_cast<Vec<T, W>*>(to + at) = *reinterpret_cast<const Vec<T, W>*>(from + at);
    return;
  }
  C x[W], y[W], out_x[W], out_y[W];
  int64_t at = head.interleaved ? 2 * first : first, other = head.interleaved ? at + W : first + head.half;
  load(x, from + at);
  load(y, from + other);
  if (!head.interleaved) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C c = cos[first + j], s = sign * sin[first + j];
      out_x[j] = x[j] * c - y[j] * s;
      out_y[j] = y[j] * c + x[j] * s;
    }
  } else {
    C both[2 * W];
#pragma unroll
    for (int j = 0; j < W; ++j) both[j] = x[j], both[W + j] = y[j];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C c = cos[first + j], s = sign * sin[first + j], a = both[2 * j], b = both[2 * j + 1];
      both[2 * j] = a * c - b * s;
      both[2 * j + 1] = b * c + a * s;
    }
#pragma unroll
    for (int j = 0; j < W; ++j) out_x[j] = both[j], out_y[j] = both[W + j];
  }
  store(to + at, out_x);
  store(to + other, out_y);
}

template <class T>
struct RopeOp {
  const T* x;
  T* y;
  const Compute<T>*cos, *sin;
  int64_t heads, x_token, x_head, y_token, y_head;
  HeadShape head;
  Compute<T> sign;
};

template <class T, int W>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeOp<T> op, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t units = op.head.template units<W>(), row = i / units, unit = i - row * units;
  int64_t token = row / op.heads, h = row - token * op.heads;
  turn_unit<T, W>(op.x + token * op.x_token + h * op.x_head, op.y + token * op.y_token + h * op.y_head,
                  op.cos + token * op.head.half, op.sin + token * op.head.half, op.head, unit, op.sign);
}

void rope(const KernelContext& ctx, const RopeArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("rope", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    RopeOp<T> op{pointer<T>(args.x),
                 pointer<T>(args.y),
                 pointer<C>(args.cos),
                 pointer<C>(args.sin),
                 args.x.size(1),
                 args.x.stride(0),
                 args.x.stride(1),
                 args.y.stride(0),
                 args.y.stride(1),
                 {args.x.size(2), args.cos.size(1), args.interleaved},
                 args.inverse ? C(-1) : C(1)};
    constexpr int W = kVector<T>;
    int64_t lengths = op.x_token | op.x_head | op.y_token | op.y_head | op.head.channels | op.head.half;
    bool vector = aligned(op.x) && aligned(op.y) && lengths % W == 0;  // W is a power of two
    int64_t rows = args.x.size(0) * op.heads;
    cudaStream_t stream = stream_of(ctx);
    if (vector) {
      int64_t n = rows * op.head.template units<W>();
      rope_kernel<T, W><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(op, n);
    } else {
      int64_t n = rows * op.head.template units<1>();
      rope_kernel<T, 1><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(op, n);
    }
    check_launch("rope");
  });
}

template <class T>
struct QkvOp {
  T *qkv, *q, *k, *v;
  const Compute<T>*cos, *sin;
  int64_t groups, per_group;
  HeadShape head;
  bool merge;
};

template <class T, int W>
__global__ void __launch_bounds__(kThreads) qkv_kernel(QkvOp<T> op, int64_t n) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t units = op.head.template units<W>(), row = i / units, unit = i - row * units;
  int64_t per_row = op.per_group + 2, group = row / per_row, member = row - group * per_row;
  int64_t token = group / op.groups, channels = op.head.channels;
  T* fused = op.qkv + row * channels;
  T* apart = member < op.per_group ? op.q + (group * op.per_group + member) * channels
                                   : (member == op.per_group ? op.k : op.v) + group * channels;
  const T* from = op.merge ? apart : fused;
  T* to = op.merge ? fused : apart;
  if (member > op.per_group) {
    int64_t first = unit * W;
    *reinterpret_cast<Vec<T, W>*>(to + first) = *reinterpret_cast<const Vec<T, W>*>(from + first);
    // The units of a head that turns number half fewer: they copy the rest here.
    if (int64_t rest = channels - op.head.half + first; first < op.head.half)
      *reinterpret_cast<Vec<T, W>*>(to + rest) = *reinterpret_cast<const Vec<T, W>*>(from + rest);
    return;
  }
  turn_unit<T, W>(from, to, op.cos + token * op.head.half, op.sin + token * op.head.half, op.head, unit,
                  op.merge ? Compute<T>(-1) : Compute<T>(1));
}

void qkv_split(const KernelContext& ctx, const QkvSplitArgs& args) {
  if (args.qkv.numel() == 0) return;
  dispatch_float("qkv_split", args.qkv.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    int64_t groups = args.k.size(1), channels = args.k.size(2), half = args.cos ? args.cos.size(1) : 0;
    QkvOp<T> op{pointer<T>(args.qkv),
                pointer<T>(args.q),
                pointer<T>(args.k),
                pointer<T>(args.v),
                pointer<C>(args.cos),
                pointer<C>(args.sin),
                groups,
                args.q.size(1) / groups,
                {channels, half, args.interleaved},
                args.merge};
    constexpr int W = kVector<T>;
    bool vector = aligned(op.qkv) && aligned(op.q) && aligned(op.k) && aligned(op.v) && channels % W == 0 &&
                  half % W == 0;
    int64_t rows = args.k.size(0) * groups * (op.per_group + 2);
    cudaStream_t stream = stream_of(ctx);
    if (vector) {
      int64_t n = rows * op.head.template units<W>();
      qkv_kernel<T, W><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(op, n);
    } else {
      int64_t n = rows * op.head.template units<1>();
      qkv_kernel<T, 1><<<blocks_for(n, kThreads), kThreads, 0, stream>>>(op, n);
    }
    check_launch("qkv_split");
  });
}

}  // namespace

void add_rope_kernels(KernelTable& table) {
  table.rope_table = rope_table;
  table.rope = rope;
  table.qkv_split = qkv_split;
}

}  // namespace megatron::cuda
