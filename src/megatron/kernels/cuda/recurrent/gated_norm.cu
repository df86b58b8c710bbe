#include "megatron/kernels/cuda/core/reduce_partials.cuh"
#include "megatron/kernels/cuda/core/row_shape.cuh"
#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/limits/norm.h"

namespace megatron::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kRowThreads = 256;  // of a block of short rows: not more than kMaxRowGroups of several warps
// Threads of a row are so many of a warp, or (0) warps.
template <int Lanes>
constexpr int kMaxThreads = Lanes ? kRowThreads : limits::kNormThreads;

// Where the gate comes. A kernel for either asks when it runs: shapes that few need are compiled once.
enum class Gate { First, Last, Either };

// What all kernels share: rows are (token, group), each of `size` channels. Numbers of rows have 32 bits:
// addresses made of wider ones cost a kernel of short rows more than its sums do.
template <class T>
struct GatedRows {
  using C = Compute<T>;
  const T *x, *gate, *weight, *dy;
  uint32_t x_stride, gate_stride, dy_stride, count;
  Divisor groups;
  int size;
  bool shared_weight, gate_first;
  C inverse_width = 0, epsilon = 0;

  template <class Args>
  GatedRows(const Args& args, const Tensor& statistics, const Tensor& dy_tensor)
      : x(pointer<T>(args.x)),
        gate(pointer<T>(args.gate)),
        weight(pointer<T>(args.weight)),
        dy(pointer<T>(dy_tensor)),
        x_stride(static_cast<uint32_t>(args.x.stride(0))),
        gate_stride(static_cast<uint32_t>(args.gate.stride(0))),
        dy_stride(dy_tensor.defined() ? static_cast<uint32_t>(dy_tensor.stride(0)) : 0),
        count(static_cast<uint32_t>(statistics.numel())),
        groups(statistics.size(1)),
        size(static_cast<int>(args.x.size(1) / statistics.size(1))),
        shared_weight(args.weight.defined() && args.weight.numel() == size && groups.value > 1),
        gate_first(args.gate_first) {}
  void normalize(int64_t width, double epsilon_) {
    inverse_width = C(1) / static_cast<C>(width), epsilon = static_cast<C>(epsilon_);
  }
  // Whether all of it lies so that vectors of W can be read.
  bool vectors(int W) const {
    const size_t bytes = W * sizeof(T);
    return (x_stride | gate_stride | dy_stride | static_cast<uint32_t>(size)) % W == 0 && aligned(x, bytes) &&
           aligned(gate, bytes) && aligned(weight, bytes) && aligned(dy, bytes);
  }

  // A row that is not there has no size, and no column inside: two rows may share a warp.
  struct Place {
    uint32_t token, first;
    int size;
  };
  __device__ Place place(uint32_t row) const {
    if (row >= count) return {0, 0, 0};
    const uint32_t token = groups.divide(row);
    return {token, (row - token * groups.value) * static_cast<uint32_t>(size), size};
  }
  __device__ static uint64_t offset(const Place& at, uint32_t stride) {
    return uint64_t{at.token} * stride + at.first;
  }
  __device__ C rstd(C squares) const { return rsqrt(squares * inverse_width + epsilon); }
};

template <int W, int Items, int Lanes>
struct GatedShape : RowShape<W, Items, Lanes> {
  __device__ static bool inside(int item, int size) {
    return Lanes ? size > 0 : RowShape<W, Items, Lanes>::column(item) < size;
  }
  template <class T>
  __device__ static void read_row(Packed<T, W> (&to)[Items], const T* from, int size) {
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (inside(i, size)) to[i].put(read<W>(from + GatedShape::column(i)));
  }
};

// Sums of u², or with dy of dy · ∂y/∂(u · rstd) · u, which is dy · weight · x · silu(gate) whichever comes
// first.
template <class T, int W, int Items>
__global__ void __launch_bounds__(kMaxThreads<0>) sums_kernel(GatedRows<T> rows, Compute<T>* sums) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items, 0>;
  __shared__ C partial[2][Shape::kMaxRows][kWarp];
  const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  const auto at = rows.place(row);
  const bool gated = rows.gate_first || rows.dy;
  Packed<T, W> x[Items], gate[Items], dy[Items];
  Shape::read_row(x, rows.x + rows.offset(at, rows.x_stride), at.size);
  if (gated) Shape::read_row(gate, rows.gate + rows.offset(at, rows.gate_stride), at.size);
  if (rows.dy) Shape::read_row(dy, rows.dy + rows.offset(at, rows.dy_stride), at.size);
  C sum = 0;
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (Shape::inside(i, at.size)) {
      C u[W], g[W], d[W], w[W];
      x[i].widened(u);
      if (gated) {
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) u[k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
      if (rows.dy) {
        dy[i].widened(d);
        load(w, rows.weight + (rows.shared_weight ? 0 : at.first) + Shape::column(i));
      }
#pragma unroll
      for (int k = 0; k < W; ++k) sum += rows.dy ? d[k] * w[k] * u[k] : u[k] * u[k];
    }
  sum = RowSums<C>{partial}.sum(sum, 0);
  if (threadIdx.x == 0 && at.size) sums[row] = sum;
}

// The sums of squares are made here, or given.
template <class T, int W, int Items, int Lanes, Gate kGate>
__global__ void __launch_bounds__(kMaxThreads<Lanes>)
    forward_kernel(GatedRows<T> rows, Compute<T>* squares, bool given, T* y) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items, Lanes>;
  __shared__ C partial[2][Shape::kMaxRows][kWarp];
  const bool first = kGate == Gate::Either ? rows.gate_first : kGate == Gate::First;
  const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  const auto at = rows.place(row);
  Packed<T, W> x[Items], gate[Items];
  Shape::read_row(x, rows.x + rows.offset(at, rows.x_stride), at.size);
  Shape::read_row(gate, rows.gate + rows.offset(at, rows.gate_stride), at.size);
  C u[Items][W], sum = 0;
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (Shape::inside(i, at.size)) {
      x[i].widened(u[i]);
      if (first) {
        C g[W];
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) u[i][k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
#pragma unroll
      for (int k = 0; k < W; ++k) sum += u[i][k] * u[i][k];
    }
  if (given) {
    if (at.size) sum = squares[row];
  } else {
    sum = RowSums<C, Lanes>{partial}.sum(sum, 0);
    if (threadIdx.x == 0 && at.size) squares[row] = sum;
  }
  const C rstd = rows.rstd(sum);
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (Shape::inside(i, at.size)) {
      C w[W], out[W];
      load(w, rows.weight + (rows.shared_weight ? 0 : at.first) + Shape::column(i));
#pragma unroll
      for (int k = 0; k < W; ++k) out[k] = u[i][k] * rstd * w[k];
      if (!first) {
        C g[W];
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) out[k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
      store(y + uint64_t{row} * static_cast<uint32_t>(rows.size) + Shape::column(i), out);
    }
}

// Blocks stay. Each has the weights of one group, or those that all share, and takes every so-many-th row
// that meets them, one in each row group of threads: a thread has the same columns for good, sums the
// weight's gradient on the way, and fetches the next row while it computes. partial[blocks for a group,
// weights]. The sums along rows are made here, where `along` does not give them.
template <class T, int W, int Items, int Lanes, Gate kGate>
__global__ void __launch_bounds__(kMaxThreads<Lanes>, Lanes ? (Items == 1 ? 3 : 2) : 1)
    backward_kernel(GatedRows<T> rows, const Compute<T>* squares, const Compute<T>* along, T* dx, T* dgate,
                    Compute<T>* partial) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items, Lanes>;
  __shared__ C row_partial[2][Shape::kMaxRows][kWarp];
  const RowSums<C, Lanes> row_sums{row_partial};
  const bool first = kGate == Gate::Either ? rows.gate_first : kGate == Gate::First;
  const uint32_t sets = rows.shared_weight ? 1 : rows.groups.value, part = blockIdx.x / sets,
                 set = blockIdx.x - part * sets, step = gridDim.x * blockDim.y;
  const T* weights = rows.weight + set * static_cast<uint32_t>(rows.size);
  Packed<T, W> weight[Items], next_x[Items], next_gate[Items], next_dy[Items];
  C dweight[Items][W] = {}, next_square = 0, next_along = 0;
  Shape::read_row(weight, weights, rows.size);
  griddep_launch();
  auto fetch = [&](uint32_t row) {
    const auto at = rows.place(row);
    if (!at.size) return;
    next_square = squares[row];
    if (along) next_along = along[row];
    Shape::read_row(next_x, rows.x + rows.offset(at, rows.x_stride), at.size);
    Shape::read_row(next_gate, rows.gate + rows.offset(at, rows.gate_stride), at.size);
    Shape::read_row(next_dy, rows.dy + rows.offset(at, rows.dy_stride), at.size);
  };
  uint32_t row = (part * blockDim.y + threadIdx.y) * sets + set;
  fetch(row);
  // All row groups go on while one has a row.
  for (int turn = 0; row - threadIdx.y * sets < rows.count; row += step, turn ^= 1) {
    const int size = row < rows.count ? rows.size : 0;
    Packed<T, W> x[Items], gate[Items], dy[Items];
#pragma unroll
    for (int i = 0; i < Items; ++i) x[i] = next_x[i], gate[i] = next_gate[i], dy[i] = next_dy[i];
    const C rstd = rows.rstd(next_square);
    const C given = next_along;
    C sum = 0;
    fetch(row + step);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Shape::inside(i, size)) {
        C input[W], g[W], gradient[W], w[W];
        x[i].widened(input);
        gate[i].widened(g);
        dy[i].widened(gradient);
        weight[i].widened(w);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const C all = gradient[k] * input[k] * (g[k] * sigmoid<kRough<T>>(g[k]));
          dweight[i][k] += all * rstd;
          sum += all * w[k];
        }
        if constexpr (Items > 1) {  // or too much would be held over the sum
          x[i].forget();
          gate[i].forget();
          dy[i].forget();
          weight[i].forget();
        }
      }
    sum = along ? given : row_sums.sum(sum, turn);
    const C pull = sum * rstd * rstd * rstd * rows.inverse_width;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Shape::inside(i, size)) {
        C input[W], g[W], gradient[W], w[W], to_x[W], to_gate[W];
        x[i].widened(input);
        gate[i].widened(g);
        dy[i].widened(gradient);
        weight[i].widened(w);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const C s = sigmoid<kRough<T>>(g[k]), open = g[k] * s, slope = s + open * (C(1) - s);
          const C direct = rstd * gradient[k] * w[k];
          const C du = first ? direct - input[k] * open * pull : direct * open - input[k] * pull;
          to_x[k] = first ? du * open : du;
          to_gate[k] = (first ? du : direct) * input[k] * slope;
        }
        const uint64_t to = uint64_t{row} * static_cast<uint32_t>(rows.size) + Shape::column(i);
        store(dx + to, to_x);
        store(dgate + to, to_gate);
      }
  }
  if (!partial) return;
  // The row groups of a block add up in order.
  __shared__ C sums[kMaxThreads<Lanes> * W];
  const int width = Shape::threads() * W, row_groups = static_cast<int>(blockDim.y);
  partial += (uint64_t{part} * sets + set) * static_cast<uint32_t>(rows.size);
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < W; ++k)
      sums[static_cast<int>(threadIdx.y) * width + static_cast<int>(threadIdx.x) * W + k] = dweight[i][k];
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.y) * Shape::threads() + static_cast<int>(threadIdx.x); j < width;
         j += row_groups * Shape::threads()) {
      if (i * width + j >= rows.size) break;
      C total = 0;
      for (int g = 0; g < row_groups; ++g) total += sums[g * width + j];
      partial[i * width + j] = total;
    }
  }
}

template <class C>
struct PutSum {
  C* out;
  __device__ void operator()(int64_t column, C sum) const { out[column] = sum; }
};

// f(shape, gate, threads of a row), in a shape that fits `rows`: lanes of a warp for a row that fills them,
// where there are kernels for `Lanes`, else as few warps as can hold the row. `also` must lie as well as the
// rows do.
template <bool Lanes, class T, class F>
void with_shape(const char* name, const GatedRows<T>& rows, std::initializer_list<const void*> also, F&& f) {
  auto lies_well = [&](int W) {
    return rows.vectors(W) &&
           std::all_of(also.begin(), also.end(), [&](const void* p) { return aligned(p, W * sizeof(T)); });
  };
  auto fills = [&]<int W, int Items, int L, Gate kGate>(GatedShape<W, Items, L> shape,
                                                        std::integral_constant<Gate, kGate> gate) {
    if (rows.size != W * Items * L || rows.gate_first != (kGate == Gate::First) || !lies_well(W))
      return false;
    f(shape, gate, static_cast<unsigned>(L));
    return true;
  };
  auto fits = [&]<int W, int Items>(GatedShape<W, Items, 0> shape) {
    const unsigned threads = blocks_for(rows.size, W * Items * kWarp) * kWarp;
    if (threads > kMaxThreads<0> || !lies_well(W)) return false;
    f(shape, std::integral_constant<Gate, Gate::Either>{}, threads);
    return true;
  };
  constexpr int V = kVector<T>, kMax = limits::kNormElements;
  bool done = false;
  if constexpr (Lanes && sizeof(T) == 2)  // heads of 128 channels of a delta net, groups of 640 of a Mamba-2
    done = fills(GatedShape<V, 1, 16>{}, std::integral_constant<Gate, Gate::Last>{}) ||
           fills(GatedShape<V / 2, 5, 32>{}, std::integral_constant<Gate, Gate::First>{});
  done = done || fits(GatedShape<V, 2, 0>{});
  if constexpr (sizeof(T) == 2) done = done || fits(GatedShape<V, 8, 0>{});
  done = done || fits(GatedShape<1, kMax, 0>{});
  require(done, "{}: no kernel holds a group of {} channels", name, rows.size);
}

// Rows side by side: some hundred threads a block.
dim3 block_of(unsigned threads) { return {threads, std::max(1u, kRowThreads / threads)}; }

void gated_norm_sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  if (args.sums.numel() == 0) return;
  dispatch_float("gated_norm_sums", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.sums, args.dy);
    with_shape<false>(
        "gated_norm_sums", rows, {}, [&]<int W, int Items>(GatedShape<W, Items, 0>, auto, unsigned threads) {
          const dim3 block = block_of(threads);
          sums_kernel<T, W, Items><<<blocks_for(args.sums.numel(), block.y), block, 0, stream_of(ctx)>>>(
              rows, pointer<Compute<T>>(args.sums));
        });
  });
  check_launch("gated_norm_sums");
}

void gated_norm(const KernelContext& ctx, const GatedNormArgs& args) {
  if (args.y.numel() == 0) return;
  dispatch_float("gated_norm", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.squares, {});
    const bool own = args.width == 0;
    rows.normalize(own ? rows.size : args.width, args.epsilon);
    T* y = pointer<T>(args.y);
    with_shape<true>("gated_norm", rows, {y},
                     [&]<int W, int Items, int Lanes, Gate kGate>(
                         GatedShape<W, Items, Lanes>, std::integral_constant<Gate, kGate>, unsigned threads) {
                       const dim3 block = block_of(threads);
                       forward_kernel<T, W, Items, Lanes, kGate>
                           <<<blocks_for(args.squares.numel(), block.y), block, 0, stream_of(ctx)>>>(
                               rows, pointer<Compute<T>>(args.squares), !own, y);
                     });
  });
  check_launch("gated_norm");
}

void gated_norm_backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  dispatch_float("gated_norm_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    if (args.x.size(1) == 0) return;
    GatedRows<T> rows(args, args.squares, args.dy);
    rows.normalize(args.width, args.epsilon);
    T *dx = pointer<T>(args.dx), *dgate = pointer<T>(args.dgate);
    auto launch = [&]<int W, int Items, int Lanes, Gate kGate>(
                      GatedShape<W, Items, Lanes>, std::integral_constant<Gate, kGate>, unsigned threads) {
      const dim3 block = block_of(threads);
      auto kernel = backward_kernel<T, W, Items, Lanes, kGate>;
      // As many blocks as the GPU holds at once, as many of them for each group that has its own weights.
      const int64_t sets = rows.shared_weight ? 1 : rows.groups.value,
                    most = resident_blocks(ctx, kernel, block, 0, INT64_MAX);
      const int64_t parts =
          std::clamp<int64_t>(most / sets, 1, std::max<int64_t>(1, blocks_for(rows.count / sets, block.y)));
      Scratch partial(ctx, static_cast<size_t>(parts * sets * rows.size) * sizeof(C));
      C* sums = args.dweight.defined() ? partial.as<C>() : nullptr;
      kernel<<<static_cast<unsigned>(parts * sets), block, 0, stream_of(ctx)>>>(
          rows, pointer<C>(args.squares), pointer<C>(args.along), dx, dgate, sums);
      check_launch("gated_norm_backward");
      if (sums)
        reduce_partials("gated_norm_backward", stream_of(ctx), sums, parts, sets * rows.size,
                        PutSum<C>{pointer<C>(args.dweight)});
    };
    with_shape<true>("gated_norm_backward", rows, {dx, dgate}, launch);
  });
}

}  // namespace

void add_gated_norm_kernels(KernelTable& table) {
  table.gated_norm_sums = gated_norm_sums;
  table.gated_norm = gated_norm;
  table.gated_norm_backward = gated_norm_backward;
}

}  // namespace megatron::cuda
