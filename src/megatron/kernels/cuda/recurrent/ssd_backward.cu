#include "megatron/kernels/cuda/recurrent/ssd_mma_backward.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct SsdGrads {
  using C = Compute<T>;
  const T* dy;
  int64_t dy_stride;
  T *dxbc, *ddt;
  C* after;     // [slots, heads, channels, states]: the gradient of the state after a chunk
  C* reached;   // [slots, groups, chunk, chunk]: the gradient of c_i · b_j
  C* partials;  // [3, slots, heads]: a_log, d, dt_bias
  // [slots, heads, tiles, chunk]: what passes from token j to token i of a chunk, times its gradient, summed
  // over the j of a tile for each i, and over the i of a tile for each j.
  C *out_of_rows, *into_columns;

  __device__ C dy_at(int64_t t, int64_t head, int channels, int p) const {
    return widen(dy[t * dy_stride + head * channels + p]);
  }
};

// What a chunk's outputs ask of the state before it: Σ_i exp(sum_i) dy_i c_iᵀ.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) dstates_kernel(SsdTask<T> task, SsdGrads<T> grads) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  const int64_t slot = blockIdx.x, head = blockIdx.y, group = task.group_of(head);
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  if (length <= 0) return;
  const int side = (task.states + kSimtTileMN - 1) / kSimtTileMN;
  const int p0 = blockIdx.z / side * kSimtTileMN, n0 = blockIdx.z % side * kSimtTileMN;
  SimtTile<C> tile;
  tile.template add<false, false>(
      memory, 0, length,
      [&](int p, int i) {
        if (p0 + p >= task.channels) return C(0);
        return exp_of(task.sums[task.at(span.begin + i, head)]) *
               grads.dy_at(span.begin + i, head, task.channels, p0 + p);
      },
      [&](int i, int n) { return n0 + n < task.states ? task.c(span.begin + i, group, n0 + n) : C(0); });
  tile.write(grads.after + task.state_at(slot, head), p0, task.channels, n0, task.states);
}

// The gradient of Δ_j x_j through the state after the chunk, rows j from j0 and channels from p0.
template <class T>
__device__ SimtTile<Compute<T>> state_gradient_tile(const SsdTask<T>& task, const SsdGrads<T>& grads,
                                                    SimtSmem<Compute<T>>& memory, int64_t slot, int64_t begin,
                                                    int length, int64_t head, int j0, int p0) {
  using C = Compute<T>;
  const int64_t group = task.group_of(head);
  const C* after = grads.after + task.state_at(slot, head);
  const C total = task.sums[task.at(begin + length - 1, head)];
  SimtTile<C> tile;
  tile.template add<true, true>(
      memory, 0, task.states,
      [&](int j, int n) { return j0 + j < length ? task.b(begin + j0 + j, group, n) : C(0); },
      [&](int n, int p) { return p0 + p < task.channels ? after[(p0 + p) * task.states + n] : C(0); });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int row = j0 + tile.row(i);
    C left = row < length ? exp_of(total - task.sums[task.at(begin + row, head)]) : C(0);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile.sum[i][j] *= left;
  }
  return tile;
}

// Adds Σ_p value(row, p) of a tile to its rows' sums: one thread of each row writes.
template <class C, class Value>
__device__ void add_row_sums(int first_row, int length, C* sums, Value value) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    C sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += value(i, j);
    sum = row_sum(sum);
    int row = first_row + SimtTile<C>::row(i);
    if (threadIdx.x % 16 == 0 && row < length) sums[row] += sum;
  }
}

// One chunk of one head: the gradients of x and dt, and this chunk's part of those of a_log, d and dt_bias.
// The log-decay of a token scales all that passes it. What comes out at token i has passed every token up to
// i, what went in at j has not passed those up to j: its gradient is a sum from the end of the former less
// the latter. What passes between two tokens is in both, by the same number, so that it cancels without a
// trace.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) token_kernel(SsdTask<T> task, SsdGrads<T> grads) {
  using C = Compute<T>;
  extern __shared__ char raw_memory[];
  __shared__ SimtSmem<C> memory;
  C* read_sums = reinterpret_cast<C*>(raw_memory);  // of the state before the chunk
  C *left_sums = read_sums + task.chunk, *in_sums = left_sums + task.chunk, *skip_sums = in_sums + task.chunk;
  const int64_t slot = blockIdx.x, head = blockIdx.y, at = slot * task.heads + head;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  const int64_t parts = task.slots * task.heads;
  if (length <= 0) {
    if (threadIdx.x == 0)
      for (int k = 0; k < 3; ++k) grads.partials[k * parts + at] = 0;
    return;
  }
  for (int i = threadIdx.x; i < 4 * task.chunk; i += kSimtThreads) read_sums[i] = 0;
  const C skip = task.d[head], *cb = task.cb_of(slot, task.group_of(head));
  for (int i0 = 0; i0 < length; i0 += kSimtTileMN)
    for (int p0 = 0; p0 < task.channels; p0 += kSimtTileMN) {
      auto inside = [&](int row, int p) { return row < length && p < task.channels; };
      SimtTile<C> y = ssd_state_tile(task, memory, slot, span.begin, length, head, i0, p0);
      __syncthreads();
      add_row_sums(i0, length, read_sums, [&](int i, int j) {
        int row = i0 + y.row(i), p = p0 + y.column(j);
        return inside(row, p) ? y.sum[i][j] * grads.dy_at(span.begin + row, head, task.channels, p) : C(0);
      });
      SimtTile<C> dx = state_gradient_tile(task, grads, memory, slot, span.begin, length, head, i0, p0);
      C x[4][4], dy[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          int row = i0 + dx.row(i), p = p0 + dx.column(j);
          x[i][j] = inside(row, p) ? task.x(span.begin + row, head, p) : C(0);
        }
      add_row_sums(i0, length, left_sums, [&](int i, int j) { return x[i][j] * dx.sum[i][j]; });
      dx.template add<false, false>(  // through later tokens of the chunk
          memory, i0, length,
          [&](int j, int i) {
            int row = i0 + j;
            if (row > i) return C(0);
            return exp_of(task.sums[task.at(span.begin + i, head)] -
                          task.sums[task.at(span.begin + row, head)]) *
                   cb[i * task.chunk + row];
          },
          [&](int i, int p) {
            return p0 + p < task.channels ? grads.dy_at(span.begin + i, head, task.channels, p0 + p) : C(0);
          });
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          int row = i0 + dx.row(i), p = p0 + dx.column(j);
          dy[i][j] = 0;
          if (!inside(row, p)) continue;
          int64_t t = span.begin + row;
          dy[i][j] = grads.dy_at(t, head, task.channels, p);
          int64_t width = task.heads * task.channels + 2 * task.groups * task.states;
          grads.dxbc[t * width + head * task.channels + p] =
              narrow<T>(task.steps[task.at(t, head)] * dx.sum[i][j] + skip * dy[i][j]);
        }
      add_row_sums(i0, length, in_sums, [&](int i, int j) { return x[i][j] * dx.sum[i][j]; });
      add_row_sums(i0, length, skip_sums, [&](int i, int j) { return x[i][j] * dy[i][j]; });
    }
  // What the state before the chunk leaves in the one after it.
  C carried = 0;
  const C *state = task.before + task.state_at(slot, head), *after = grads.after + task.state_at(slot, head);
  for (int e = threadIdx.x; e < task.channels * task.states; e += kSimtThreads)
    carried += state[e] * after[e];
  carried = block_sum(carried);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const C rate = task.rate(head);
  const int side = (task.chunk + kSimtTileMN - 1) / kSimtTileMN;
  const C *rows = grads.out_of_rows + at * side * task.chunk,
          *columns = grads.into_columns + at * side * task.chunk;
  C later = task.decays[at] * carried, da_log = 0, dd = 0, ddt_bias = 0;
  for (int i = 0; i < length; ++i) later += task.steps[task.at(span.begin + i, head)] * left_sums[i];
  for (int i = length - 1; i >= 0; --i) {
    const int64_t t = span.begin + i;
    const C step = task.steps[task.at(t, head)], raw = task.raw_step(t, head), soft = softplus(raw);
    C out = read_sums[i], in = step * left_sums[i];
    for (int tile = 0; tile <= i / kSimtTileMN; ++tile) out += rows[tile * task.chunk + i];
    for (int tile = i / kSimtTileMN; tile * kSimtTileMN < length; ++tile)
      in += columns[tile * task.chunk + i];
    later += out - in;
    const C slope = soft >= task.step_min && soft <= task.step_max ? sigmoid<false>(raw) : C(0);
    const C draw = (rate * later + in_sums[i]) * slope;
    grads.ddt[task.at(t, head)] = narrow<T>(draw);
    ddt_bias += draw;
    da_log += rate * step * later;
    dd += skip_sums[i];
  }
  grads.partials[at] = da_log;
  grads.partials[parts + at] = dd;
  grads.partials[2 * parts + at] = ddt_bias;
}

// The gradient of c_i · b_j, summed over the heads of the group: tiles on and below the diagonal.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) reached_kernel(SsdTask<T> task, SsdGrads<T> grads) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  __shared__ C columns[kSimtThreads / 16][kSimtTileMN];
  const int64_t slot = blockIdx.x, group = blockIdx.y;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin),
            side = (task.chunk + kSimtTileMN - 1) / kSimtTileMN;
  const int i0 = blockIdx.z / side * kSimtTileMN, j0 = blockIdx.z % side * kSimtTileMN;
  if (i0 >= length || j0 > i0) return;
  const C* cb = task.cb_of(slot, group);
  C sum[4][4] = {};
  for (int64_t head = group * task.share; head < (group + 1) * task.share; ++head) {
    SimtTile<C> tile;
    tile.template add<true, true>(
        memory, 0, task.channels,
        [&](int i, int p) {
          return i0 + i < length ? grads.dy_at(span.begin + i0 + i, head, task.channels, p) : C(0);
        },
        [&](int p, int j) { return j0 + j < length ? task.x(span.begin + j0 + j, head, p) : C(0); });
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (int row = i0 + tile.row(i), column = j0 + tile.column(j); row < length && column <= row) {
          int64_t from = task.at(span.begin + column, head);
          C share = exp_of(task.sums[task.at(span.begin + row, head)] - task.sums[from]) * task.steps[from] *
                    tile.sum[i][j];
          sum[i][j] += share;
          tile.sum[i][j] = share * cb[row * task.chunk + column];
        } else {
          tile.sum[i][j] = 0;
        }
    const int64_t at = (slot * task.heads + head) * side;
    const int lane = threadIdx.x % 16, line = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      C along = row_sum((tile.sum[i][0] + tile.sum[i][1]) + (tile.sum[i][2] + tile.sum[i][3]));
      if (int row = i0 + tile.row(i); lane == 0 && row < length)
        grads.out_of_rows[(at + j0 / kSimtTileMN) * task.chunk + row] = along;
      columns[line][tile.column(i)] = (tile.sum[0][i] + tile.sum[1][i]) + (tile.sum[2][i] + tile.sum[3][i]);
    }
    __syncthreads();
    if (int j = threadIdx.x; j < kSimtTileMN && j0 + j < length) {
      C along = 0;
      for (int l = 0; l < kSimtThreads / 16; ++l) along += columns[l][j];
      grads.into_columns[(at + i0 / kSimtTileMN) * task.chunk + j0 + j] = along;
    }
  }
  C* out = grads.reached + (slot * task.groups + group) * task.chunk * task.chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (int row = i0 + SimtTile<C>::row(i), column = j0 + SimtTile<C>::column(j);
          row < length && column <= row)
        out[row * task.chunk + column] = sum[i][j];
}

// The gradients of b and c of one chunk and group: tiles of tokens × states.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) shared_kernel(SsdTask<T> task, SsdGrads<T> grads) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  const int64_t slot = blockIdx.x, group = blockIdx.y;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin),
            side = (task.states + kSimtTileMN - 1) / kSimtTileMN;
  const int i0 = blockIdx.z / side * kSimtTileMN, n0 = blockIdx.z % side * kSimtTileMN;
  if (i0 >= length) return;
  const C* reached = grads.reached + (slot * task.groups + group) * task.chunk * task.chunk;
  const int64_t begin = span.begin;
  auto write = [&](const SimtTile<C>& tile, int64_t column0) {
    const int64_t width = task.heads * task.channels + 2 * task.groups * task.states;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (int row = i0 + tile.row(i), n = n0 + tile.column(j); row < length && n < task.states)
          grads.dxbc[(begin + row) * width + column0 + n] = narrow<T>(tile.sum[i][j]);
  };
  SimtTile<C> dc;
  dc.template add<true, false>(
      memory, 0, min(length, i0 + kSimtTileMN),
      [&](int i, int j) {
        return i0 + i < length && j <= i0 + i ? reached[(i0 + i) * task.chunk + j] : C(0);
      },
      [&](int j, int n) { return n0 + n < task.states ? task.b(begin + j, group, n0 + n) : C(0); });
  for (int64_t head = group * task.share; head < (group + 1) * task.share; ++head) {
    const C* state = task.before + task.state_at(slot, head);
    dc.template add<true, false>(
        memory, 0, task.channels,
        [&](int i, int p) {
          if (i0 + i >= length) return C(0);
          return exp_of(task.sums[task.at(begin + i0 + i, head)]) *
                 grads.dy_at(begin + i0 + i, head, task.channels, p);
        },
        [&](int p, int n) { return n0 + n < task.states ? state[p * task.states + n0 + n] : C(0); });
  }
  write(dc, task.heads * task.channels + (task.groups + group) * task.states);
  SimtTile<C> db;
  db.template add<false, false>(
      memory, i0, length, [&](int j, int i) { return i0 + j <= i ? reached[i * task.chunk + i0 + j] : C(0); },
      [&](int i, int n) { return n0 + n < task.states ? task.c(begin + i, group, n0 + n) : C(0); });
  for (int64_t head = group * task.share; head < (group + 1) * task.share; ++head) {
    const C* after = grads.after + task.state_at(slot, head);
    const C total = task.sums[task.at(span.end - 1, head)];
    db.template add<true, false>(
        memory, 0, task.channels,
        [&](int j, int p) {
          if (i0 + j >= length) return C(0);
          int64_t from = task.at(begin + i0 + j, head);
          return exp_of(total - task.sums[from]) * task.steps[from] * task.x(begin + i0 + j, head, p);
        },
        [&](int p, int n) { return n0 + n < task.states ? after[p * task.states + n0 + n] : C(0); });
  }
  write(db, task.heads * task.channels + group * task.states);
}

// One block per head and gradient sums the chunks' parts.
template <class C>
__global__ void finish_kernel(const C* partials, int64_t slots, int64_t heads, C* da_log, C* dd,
                              C* ddt_bias) {
  const int64_t head = blockIdx.x;
  const C* own = partials + blockIdx.y * slots * heads + head;
  C sum = 0;
  for (int64_t slot = threadIdx.x; slot < slots; slot += blockDim.x) sum += own[slot * heads];
  sum = block_sum(sum);
  C* target = blockIdx.y == 0 ? da_log : blockIdx.y == 1 ? dd : ddt_bias;
  if (threadIdx.x == 0) target[head] = sum;
}

template <class C>
void finish(const SsdBackwardArgs& args, const C* partials, int64_t slots, int64_t heads,
            cudaStream_t stream) {
  finish_kernel<C><<<dim3(heads, 3), kThreads, 0, stream>>>(partials, slots, heads, pointer<C>(args.da_log),
                                                            pointer<C>(args.dd), pointer<C>(args.ddt_bias));
  check_launch("ssd_backward");
}

void backward_on_tensor_cores(const KernelContext& ctx, const SsdBackwardArgs& args,
                              const SsdTask<bfloat>& plain) {
  ScanTask task(plain);
  Scratch scratch(ctx, ScanTask::bytes(plain)), more(ctx, ScanGrads::bytes(task));
  task.use(scratch.as<float>());
  ScanGrads grads{
      {pointer<bfloat>(args.dy), args.dy.stride(0)}, pointer<bfloat>(args.dxbc), pointer<bfloat>(args.ddt)};
  grads.use(task, more.as<float>());
  scan_backward(task, grads, stream_of(ctx));
  finish<float>(args, grads.partials, task.slots, task.heads, stream_of(ctx));
}

template <class T>
void backward(const KernelContext& ctx, const SsdBackwardArgs& args) {
  using C = Compute<T>;
  SsdTask<T> task(args.forward);
  if constexpr (std::is_same_v<T, bfloat>)
    if (task.sequences.tokens > 0 && fits_scan_tiles(task) && fits_scan_rows(args.dy))
      return backward_on_tensor_cores(ctx, args, task);
  SsdScratch<T> scratch(ctx, task);
  const int64_t squares = task.slots * task.groups * task.chunk * task.chunk, parts = task.slots * task.heads;
  const int64_t passed = parts * tiles(task.chunk) * task.chunk;
  Scratch more(ctx,
               static_cast<size_t>(task.state_elements() + squares + 3 * parts + 2 * passed) * sizeof(C));
  SsdGrads<T> grads{pointer<T>(args.dy), args.dy.stride(0), pointer<T>(args.dxbc), pointer<T>(args.ddt)};
  grads.after = more.as<C>();
  grads.reached = grads.after + task.state_elements();
  grads.partials = grads.reached + squares;
  grads.out_of_rows = grads.partials + 3 * parts;
  grads.into_columns = grads.out_of_rows + passed;
  cudaStream_t stream = stream_of(ctx);
  if (task.sequences.tokens > 0) {
    prepare_ssd(ctx, task);
    dim3 grid(task.slots, task.heads, tiles(task.channels) * tiles(task.states));
    dstates_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task, grads);
    check_launch("ssd_backward");
    scan_chunks(ctx, task, grads.after, true);
    grid = dim3(task.slots, task.groups, tiles(task.chunk) * tiles(task.chunk));
    reached_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task, grads);
    check_launch("ssd_backward");
    const size_t shared = 4 * static_cast<size_t>(task.chunk) * sizeof(C);
    allow_shared_memory(token_kernel<T>, shared + sizeof(SimtSmem<C>));  // beside its own, of that size
    token_kernel<T><<<dim3(task.slots, task.heads), kSimtThreads, shared, stream>>>(task, grads);
    check_launch("ssd_backward");
    grid.z = tiles(task.chunk) * tiles(task.states);
    shared_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task, grads);
    check_launch("ssd_backward");
  } else {
    check_cuda(cudaMemsetAsync(grads.partials, 0, static_cast<size_t>(3 * parts) * sizeof(C), stream),
               "clearing memory");
  }
  finish<C>(args, grads.partials, task.slots, task.heads, stream);
}

}  // namespace

void ssd_backward(const KernelContext& ctx, const SsdBackwardArgs& args) {
  dispatch_float("ssd_backward", args.forward.xbc.dtype(), [&]<class T>(Type<T>) { backward<T>(ctx, args); });
}

}  // namespace megatron::cuda
