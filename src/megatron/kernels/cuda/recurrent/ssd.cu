#include "megatron/kernels/cuda/recurrent/ssd_decode.cuh"
#include "megatron/kernels/cuda/recurrent/ssd_mma.cuh"
#include "megatron/kernels/limits/recurrent.h"

namespace megatron::cuda {
namespace {

// A thread per chunk and head walks its tokens.
template <class T>
__global__ void __launch_bounds__(kThreads) steps_kernel(SsdTask<T> task) {
  using C = Compute<T>;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= task.slots * task.heads) return;
  int64_t slot = i / task.heads, head = i - slot * task.heads;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const C rate = task.rate(head);
  C sum = 0;
  for (int64_t t = span.begin; t < span.end; ++t) {
    C step = min(max(softplus(task.raw_step(t, head)), task.step_min), task.step_max);
    task.steps[task.at(t, head)] = step;
    task.sums[task.at(t, head)] = sum += step * rate;
  }
  task.decays[i] = exp_of(sum);
}

// c_i · b_j of one chunk and group: tiles on and below the diagonal.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) cb_kernel(SsdTask<T> task) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  const int64_t slot = blockIdx.x, group = blockIdx.y;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin),
            side = (task.chunk + kSimtTileMN - 1) / kSimtTileMN;
  const int i0 = blockIdx.z / side * kSimtTileMN, j0 = blockIdx.z % side * kSimtTileMN;
  if (i0 >= length || j0 > i0) return;
  SimtTile<C> tile;
  tile.template add<true, true>(
      memory, 0, task.states,
      [&](int i, int n) { return i0 + i < length ? task.c(span.begin + i0 + i, group, n) : C(0); },
      [&](int n, int j) { return j0 + j < length ? task.b(span.begin + j0 + j, group, n) : C(0); });
  C* out = task.cb + (slot * task.groups + group) * task.chunk * task.chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (int row = i0 + tile.row(i), column = j0 + tile.column(j); row < length && column <= row)
        out[row * task.chunk + column] = tile.sum[i][j];
}

// What a chunk adds to the state: Σ_j exp(total − sum_j) Δ_j x_j b_jᵀ.
template <class T>
__global__ void __launch_bounds__(kSimtThreads) states_kernel(SsdTask<T> task) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  const int64_t slot = blockIdx.x, head = blockIdx.y, group = task.group_of(head);
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  if (length <= 0) return;
  const int side = (task.states + kSimtTileMN - 1) / kSimtTileMN;
  const int p0 = blockIdx.z / side * kSimtTileMN, n0 = blockIdx.z % side * kSimtTileMN;
  const C total = task.sums[task.at(span.end - 1, head)];
  SimtTile<C> tile;
  tile.template add<false, false>(
      memory, 0, length,
      [&](int p, int j) {
        if (p0 + p >= task.channels) return C(0);
        int64_t from = task.at(span.begin + j, head);
        return exp_of(total - task.sums[from]) * task.steps[from] * task.x(span.begin + j, head, p0 + p);
      },
      [&](int j, int n) { return n0 + n < task.states ? task.b(span.begin + j, group, n0 + n) : C(0); });
  tile.write(task.before + task.state_at(slot, head), p0, task.channels, n0, task.states);
}

template <class T>
__global__ void __launch_bounds__(kThreads) scan_kernel(SsdTask<T> task, Compute<T>* into, bool reverse) {
  using C = Compute<T>;
  const int64_t elements = int64_t{task.channels} * task.states;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= elements) return;
  const int64_t head = blockIdx.y;
  for (int64_t i = blockIdx.z; i < task.sequences.count; i += gridDim.z) {
    TokenSpan span = task.sequences.span(i);
    const int64_t first = task.sequences.first_slot(i, task.chunk);
    const int64_t chunks = (span.end - span.begin + task.chunk - 1) / task.chunk;
    C state = 0;
    for (int64_t k = 0; k < chunks; ++k) {
      int64_t slot = first + (reverse ? chunks - 1 - k : k);
      C& place = into[task.state_at(slot, head) + e];
      C added = place;
      place = state;
      state = task.decays[slot * task.heads + head] * state + added;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kSimtThreads) outputs_kernel(SsdTask<T> task, T* y) {
  using C = Compute<T>;
  __shared__ SimtSmem<C> memory;
  const int64_t slot = blockIdx.x, head = blockIdx.y;
  ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  const int side = (task.channels + kSimtTileMN - 1) / kSimtTileMN;
  const int i0 = blockIdx.z / side * kSimtTileMN, p0 = blockIdx.z % side * kSimtTileMN;
  if (i0 >= length) return;
  SimtTile<C> tile = ssd_state_tile(task, memory, slot, span.begin, length, head, i0, p0);
  const C* cb = task.cb_of(slot, task.group_of(head));
  tile.template add<true, false>(  // from earlier tokens of the chunk
      memory, 0, min(length, i0 + kSimtTileMN),
      [&](int i, int j) {
        int row = i0 + i;
        if (row >= length || j > row) return C(0);
        int64_t from = task.at(span.begin + j, head);
        return exp_of(task.sums[task.at(span.begin + row, head)] - task.sums[from]) *
               cb[row * task.chunk + j] * task.steps[from];
      },
      [&](int j, int p) { return p0 + p < task.channels ? task.x(span.begin + j, head, p0 + p) : C(0); });
  const C skip = task.d[head];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (int row = i0 + tile.row(i), p = p0 + tile.column(j); row < length && p < task.channels) {
        int64_t t = span.begin + row;
        y[task.at(t, head) * task.channels + p] = narrow<T>(tile.sum[i][j] + skip * task.x(t, head, p));
      }
}

void ssd(const KernelContext& ctx, const SsdArgs& args) {
  if (args.y.numel() == 0) return;
  dispatch_float("ssd", args.xbc.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    SsdTask<T> task(args);
    if (args.state) return ssd_decode(ctx, task, pointer<C>(args.state), pointer<T>(args.y));
    if constexpr (std::is_same_v<T, bfloat>)
      if (fits_scan_tiles(task)) return ssd_on_tensor_cores(ctx, task, pointer<T>(args.y));
    SsdScratch<T> scratch(ctx, task);
    Scratch states(ctx, (task.before ? 1 : static_cast<size_t>(task.state_elements())) * sizeof(C));
    if (!task.before) task.before = states.as<C>();
    cudaStream_t stream = stream_of(ctx);
    prepare_ssd(ctx, task);
    dim3 grid(task.slots, task.heads, tiles(task.channels) * tiles(task.states));
    states_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task);
    check_launch("ssd");
    scan_chunks(ctx, task, task.before, false);
    grid.z = tiles(task.chunk) * tiles(task.channels);
    outputs_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task, pointer<T>(args.y));
    check_launch("ssd");
  });
}

}  // namespace

template <class T>
void prepare_ssd(const KernelContext& ctx, const SsdTask<T>& task) {
  static_assert(kSimtTileMN == limits::kScanTile);
  cudaStream_t stream = stream_of(ctx);
  steps_kernel<T><<<blocks_for(task.slots * task.heads, kThreads), kThreads, 0, stream>>>(task);
  check_launch("ssd");
  dim3 grid(task.slots, task.groups, tiles(task.chunk) * tiles(task.chunk));
  cb_kernel<T><<<grid, kSimtThreads, 0, stream>>>(task);
  check_launch("ssd");
}

template <class T>
void scan_chunks(const KernelContext& ctx, const SsdTask<T>& task, Compute<T>* into, bool reverse) {
  dim3 grid(blocks_for(int64_t{task.channels} * task.states, kThreads), task.heads,
            static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
  scan_kernel<T><<<grid, kThreads, 0, stream_of(ctx)>>>(task, into, reverse);
  check_launch("ssd");
}

template void prepare_ssd(const KernelContext&, const SsdTask<double>&);
template void prepare_ssd(const KernelContext&, const SsdTask<float>&);
template void prepare_ssd(const KernelContext&, const SsdTask<bfloat>&);
template void prepare_ssd(const KernelContext&, const SsdTask<half>&);
template void scan_chunks(const KernelContext&, const SsdTask<double>&, double*, bool);
template void scan_chunks(const KernelContext&, const SsdTask<float>&, float*, bool);
template void scan_chunks(const KernelContext&, const SsdTask<bfloat>&, float*, bool);
template void scan_chunks(const KernelContext&, const SsdTask<half>&, float*, bool);

void add_ssd_kernels(KernelTable& table) {
  table.ssd = ssd;
  table.ssd_backward = ssd_backward;
}

}  // namespace megatron::cuda
