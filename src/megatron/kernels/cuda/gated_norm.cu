#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/join_parts.cuh"
#include "megatron/kernels/cuda/line_barrier.cuh"
#include "megatron/kernels/cuda/shared_memory.cuh"

namespace megatron::cuda {
namespace {

constexpr int kLanes = 32, kMostThreads = 512;
constexpr int kRowThreads = 256;  // of a block of short rows: not more than kMostLines of several warps

// What all kernels share: rows are (token, group), each of `size` channels.
template <class T>
struct GatedRows {
  using C = Compute<T>;
  const T *x, *gate, *weight, *dy;
  int64_t x_stride, gate_stride, dy_stride, tokens, groups;
  int size;
  bool shared_weight;
  C width = 0, epsilon = 0;

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
        size(static_cast<int>(args.x.size(1) / groups)),
        shared_weight(args.weight.defined() && args.weight.numel() == size && groups > 1) {}

  // Whether all of it lies so that vectors of W can be read.
  bool vectors(int W) const {
    const size_t bytes = W * sizeof(T);
    return (x_stride | gate_stride | dy_stride | size) % W == 0 && aligned(x, bytes) &&
           aligned(gate, bytes) && aligned(weight, bytes) && aligned(dy, bytes);
  }
  __device__ C rstd(C squares) const { return C(1) / sqrt(squares / width + epsilon); }
};

// A row lies in registers as `Items` vectors of W elements in each of blockDim.x threads, half a warp or
// warps; threadIdx.y counts the rows that a block treats side by side.
template <int W, int Items>
struct GatedShape {
  __device__ static int column(int item) {
    return (item * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * W;
  }
  template <class T>
  __device__ static void read_row(Packed<T, W> (&to)[Items], const T* from, int size) {
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (column(i) < size) to[i].put(read<W>(from + column(i)));
  }
};

// A row's sum, for all of its threads. Several warps meet once; `turn` must be the other one of two from call
// to call, so that a slow warp may still read the last one's.
template <class C>
__device__ C row_sum(C value, int turn) {
  __shared__ C partial[2][kMostThreads / kLanes];
  if (blockDim.x < kLanes) {  // two rows share a warp, of which one may not be there
    const unsigned mine = 0xffffu << (threadIdx.y % 2 * (kLanes / 2));
#pragma unroll
    for (int offset = kLanes / 4; offset; offset /= 2) value += __shfl_xor_sync(mine, value, offset);
    return value;
  }
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kLanes;
  if (warps == 1) return value;
  C* mine = partial[turn] + threadIdx.y * warps;
  if (threadIdx.x % kLanes == 0) mine[threadIdx.x / kLanes] = value;
  line_barrier(threadIdx.y, blockDim.x);
  value = 0;
  for (int w = 0; w < warps; ++w) value += mine[w];
  return value;
}

// Sums of u², or with dy of dy · ∂y/∂(u · rstd) · u, which is dy · weight · x · silu(gate) whichever comes
// first.
template <class T, int W, int Items>
__global__ void __launch_bounds__(kMostThreads) sums_kernel(GatedRows<T> rows, bool gated, Compute<T>* sums) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y,
                token = divide(row, rows.groups), first = (row - token * rows.groups) * rows.size;
  if (token >= rows.tokens) return;
  Packed<T, W> x[Items], gate[Items], dy[Items];
  Shape::read_row(x, rows.x + token * rows.x_stride + first, rows.size);
  if (gated) Shape::read_row(gate, rows.gate + token * rows.gate_stride + first, rows.size);
  if (rows.dy) Shape::read_row(dy, rows.dy + token * rows.dy_stride + first, rows.size);
  C sum = 0;
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (const int j = Shape::column(i); j < rows.size) {
      C u[W], g[W], d[W], w[W];
      x[i].widened(u);
      if (gated) {
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) u[k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
      if (rows.dy) {
        dy[i].widened(d);
        load(w, rows.weight + (rows.shared_weight ? 0 : first) + j);
      }
#pragma unroll
      for (int k = 0; k < W; ++k) sum += rows.dy ? d[k] * w[k] * u[k] : u[k] * u[k];
    }
  sum = row_sum(sum, 0);
  if (threadIdx.x == 0) sums[row] = sum;
}

// The sums of squares are made here, or given.
template <class T, int W, int Items, bool First>
__global__ void __launch_bounds__(kMostThreads)
    forward_kernel(GatedRows<T> rows, Compute<T>* squares, bool given, T* y) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y,
                token = divide(row, rows.groups), first = (row - token * rows.groups) * rows.size;
  if (token >= rows.tokens) return;
  Packed<T, W> x[Items], gate[Items];
  Shape::read_row(x, rows.x + token * rows.x_stride + first, rows.size);
  Shape::read_row(gate, rows.gate + token * rows.gate_stride + first, rows.size);
  C u[Items][W], sum = 0;
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (Shape::column(i) < rows.size) {
      x[i].widened(u[i]);
      if constexpr (First) {
        C g[W];
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) u[i][k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
#pragma unroll
      for (int k = 0; k < W; ++k) sum += u[i][k] * u[i][k];
    }
  if (given) {
    sum = squares[row];
  } else {
    sum = row_sum(sum, 0);
    if (threadIdx.x == 0) squares[row] = sum;
  }
  const C rstd = rows.rstd(sum);
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (const int j = Shape::column(i); j < rows.size) {
      C w[W], out[W];
      load(w, rows.weight + (rows.shared_weight ? 0 : first) + j);
#pragma unroll
      for (int k = 0; k < W; ++k) out[k] = u[i][k] * rstd * w[k];
      if constexpr (!First) {
        C g[W];
        gate[i].widened(g);
#pragma unroll
        for (int k = 0; k < W; ++k) out[k] *= g[k] * sigmoid<kRough<T>>(g[k]);
      }
      store(y + row * rows.size + j, out);
    }
}

// Blocks stay. Each has one group, and its lines of threads take every so-many-th token, so that a thread has
// the same columns for good, sums the weight's gradient on the way, and fetches the next token while it
// computes. partial[gridDim.x / groups, channels]. The sums along rows are made here, where `along` does not
// give them.
template <class T, int W, int Items, bool First>
__global__ void __launch_bounds__(Items == 1 ? kRowThreads : kMostThreads, Items == 1 ? 4 : 1)
    backward_kernel(GatedRows<T> rows, const Compute<T>* squares, const Compute<T>* along, T* dx, T* dgate,
                    Compute<T>* partial) {
  using C = Compute<T>;
  using Shape = GatedShape<W, Items>;
  const int groups = static_cast<int>(rows.groups), group = static_cast<int>(blockIdx.x) % groups,
            part = static_cast<int>(blockIdx.x) / groups, parts = static_cast<int>(gridDim.x) / groups;
  const int64_t channels = rows.groups * rows.size, first = int64_t{group} * rows.size,
                step = int64_t{parts} * blockDim.y;
  int64_t token = int64_t{part} * blockDim.y + threadIdx.y;
  Packed<T, W> weight[Items], next_x[Items], next_gate[Items], next_dy[Items];
  C dweight[Items][W] = {}, next_square = 0, next_along = 0;
  Shape::read_row(weight, rows.weight + (rows.shared_weight ? 0 : first), rows.size);
  auto fetch = [&](int64_t t) {
    if (t >= rows.tokens) return;
    next_square = squares[t * groups + group];
    if (along) next_along = along[t * groups + group];
    Shape::read_row(next_x, rows.x + t * rows.x_stride + first, rows.size);
    Shape::read_row(next_gate, rows.gate + t * rows.gate_stride + first, rows.size);
    Shape::read_row(next_dy, rows.dy + t * rows.dy_stride + first, rows.size);
  };
  fetch(token);
  for (int turn = 0; token < rows.tokens; token += step, turn ^= 1) {
    Packed<T, W> x[Items], gate[Items], dy[Items];
#pragma unroll
    for (int i = 0; i < Items; ++i) x[i] = next_x[i], gate[i] = next_gate[i], dy[i] = next_dy[i];
    const C rstd = rows.rstd(next_square);
    const C given = next_along;
    C sum = 0;
    fetch(token + step);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Shape::column(i) < rows.size) {
        C input[W], g[W], gradient[W], w[W];
        x[i].widened(input);
        gate[i].widened(g);
        dy[i].widened(gradient);
        weight[i].widened(w);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const C all = gradient[k] * input[k] * g[k] * sigmoid<kRough<T>>(g[k]);
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
    sum = along ? given : row_sum(sum, turn);
    const C pull = sum * rstd * rstd * rstd / rows.width;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (const int j = Shape::column(i); j < rows.size) {
        C input[W], g[W], gradient[W], w[W], to_x[W], to_gate[W];
        x[i].widened(input);
        gate[i].widened(g);
        dy[i].widened(gradient);
        weight[i].widened(w);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          const C s = sigmoid<kRough<T>>(g[k]), open = g[k] * s, slope = s + open * (C(1) - s);
          const C direct = rstd * gradient[k] * w[k];
          const C du = First ? direct - input[k] * open * pull : direct * open - input[k] * pull;
          to_x[k] = First ? du * open : du;
          to_gate[k] = (First ? du : direct) * input[k] * slope;
        }
        const int64_t at = token * channels + first + j;
        store(dx + at, to_x);
        store(dgate + at, to_gate);
      }
  }
  if (!partial) return;
  // The lines of a block add up in order.
  __shared__ C sums[kMostThreads * W];
  const int threads = static_cast<int>(blockDim.x) * W;
  C* mine = sums + static_cast<int>(threadIdx.x) * W;
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < W; ++k) mine[threadIdx.y * threads + k] = dweight[i][k];
    __syncthreads();
    if (const int j = Shape::column(i); threadIdx.y == 0 && j < rows.size)
#pragma unroll
      for (int k = 0; k < W; ++k) {
        C total = 0;
        for (int line = 0; line < static_cast<int>(blockDim.y); ++line) total += mine[line * threads + k];
        partial[part * channels + first + j + k] = total;
      }
  }
}

template <class C>
struct PutSum {
  C* out;
  __device__ void operator()(int64_t column, C sum) const { out[column] = sum; }
};

// f.template operator()<W, Items, First>(threads of a row), in a shape that fits `rows`: a warp for a row
// whose vectors fill it evenly, else as few warps as can hold the row. `also` must lie as well as the rows
// do. `Stays`: with more registers than threads to spare, as blocks have that stay.
template <class T, bool Stays, class F>
void with_shape(const char* name, const GatedRows<T>& rows, bool first,
                std::initializer_list<const void*> also, F&& f) {
  auto lies_well = [&](int W) {
    return rows.vectors(W) &&
           std::all_of(also.begin(), also.end(), [&](const void* p) { return aligned(p, W * sizeof(T)); });
  };
  auto run = [&]<int W, int Items>(std::integer_sequence<int, W, Items>, int64_t threads) {
    if (threads > kMostThreads || !lies_well(W)) return false;
    if (first)
      f.template operator()<W, Items, true>(static_cast<unsigned>(threads));
    else
      f.template operator()<W, Items, false>(static_cast<unsigned>(threads));
    return true;
  };
  auto evenly = [&]<int W, int Items>(std::integer_sequence<int, W, Items> shape, int lanes) {
    return rows.size == lanes * W * Items && run(shape, lanes);
  };
  auto fits = [&]<int W, int Items>(std::integer_sequence<int, W, Items> shape) {
    return run(shape, int64_t{blocks_for(rows.size, W * Items * kLanes)} * kLanes);
  };
  constexpr int V = kVector<T>, kMost = 16;
  bool done = false;
  if constexpr (sizeof(T) == 2) {  // heads of 128 channels, groups of 640
    if constexpr (!Stays) done = evenly(std::integer_sequence<int, V, 1>{}, kLanes / 2);
    done = done || evenly(std::integer_sequence<int, V / 2, 1>{}, kLanes) ||
           evenly(std::integer_sequence<int, V / 2, 5>{}, kLanes);
  }
  done = done || fits(std::integer_sequence<int, V, 2>{}) || fits(std::integer_sequence<int, V, 8>{}) ||
         fits(std::integer_sequence<int, 1, kMost>{});
  require(done,
          "{}: a group of {} channels is too long for the CUDA kernel, which takes {}, or four times as many "
          "of 16 "
          "bits where each row begins at a multiple of 16 bytes; use more groups (--mamba-num-groups), or a "
          "number of heads per rank that is a multiple of 8",
          name, rows.size, kMost * kMostThreads);
}

// Rows side by side: some hundred threads a block.
dim3 block_of(unsigned threads) { return {threads, std::max(1u, kRowThreads / threads)}; }

void gated_norm_sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  if (args.sums.numel() == 0) return;
  dispatch_float("gated_norm_sums", args.x.dtype(), [&]<class T>(Type<T>) {
    GatedRows<T> rows(args, args.sums, args.dy);
    with_shape<T, false>(
        "gated_norm_sums", rows, args.gate_first, {}, [&]<int W, int Items, bool First>(unsigned threads) {
          const dim3 block = block_of(threads);
          sums_kernel<T, W, Items><<<blocks_for(args.sums.numel(), block.y), block, 0, stream_of(ctx)>>>(
              rows, First || rows.dy, pointer<Compute<T>>(args.sums));
        });
  });
  check_launch("gated_norm_sums");
}

void gated_norm(const KernelContext& ctx, const GatedNormArgs& args) {
  if (args.y.numel() == 0) return;
  dispatch_float("gated_norm", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    GatedRows<T> rows(args, args.squares, {});
    const bool own = args.width == 0;
    rows.width = static_cast<C>(own ? rows.size : args.width), rows.epsilon = static_cast<C>(args.epsilon);
    T* y = pointer<T>(args.y);
    with_shape<T, false>("gated_norm", rows, args.gate_first, {y},
                         [&]<int W, int Items, bool First>(unsigned threads) {
                           const dim3 block = block_of(threads);
                           forward_kernel<T, W, Items, First>
                               <<<blocks_for(args.squares.numel(), block.y), block, 0, stream_of(ctx)>>>(
                                   rows, pointer<C>(args.squares), !own, y);
                         });
  });
  check_launch("gated_norm");
}

void gated_norm_backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  dispatch_float("gated_norm_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    GatedRows<T> rows(args, args.squares, args.dy);
    rows.width = static_cast<C>(args.width), rows.epsilon = static_cast<C>(args.epsilon);
    if (args.x.size(1) == 0) return;
    T *dx = pointer<T>(args.dx), *dgate = pointer<T>(args.dgate);
    with_shape<T, true>("gated_norm_backward", rows, args.gate_first, {dx, dgate},
                        [&]<int W, int Items, bool First>(unsigned threads) {
                          const dim3 block = block_of(threads);
                          auto kernel = backward_kernel<T, W, Items, First>;
                          // As many blocks as the GPU holds at once, as many of them for each group.
                          const int64_t most = resident_blocks(ctx, kernel, block, 0, INT64_MAX);
                          const int64_t parts = std::clamp<int64_t>(
                              most / rows.groups, 1, std::max<int64_t>(1, blocks_for(rows.tokens, block.y)));
                          Scratch partial(ctx,
                                          static_cast<size_t>(parts * rows.groups * rows.size) * sizeof(C));
                          C* sums = args.dweight.defined() ? partial.as<C>() : nullptr;
                          kernel<<<static_cast<unsigned>(parts * rows.groups), block, 0, stream_of(ctx)>>>(
                              rows, pointer<C>(args.squares), pointer<C>(args.along), dx, dgate, sums);
                          check_launch("gated_norm_backward");
                          if (!sums) return;
                          join_parts("gated_norm_backward", stream_of(ctx), sums,
                                     rows.shared_weight ? parts * rows.groups : parts, args.dweight.numel(),
                                     PutSum<C>{pointer<C>(args.dweight)});
                        });
  });
}

}  // namespace

void add_gated_norm_kernels(KernelTable& table) {
  table.gated_norm_sums = gated_norm_sums;
  table.gated_norm = gated_norm;
  table.gated_norm_backward = gated_norm_backward;
}

}  // namespace megatron::cuda
