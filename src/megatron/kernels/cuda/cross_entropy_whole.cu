#include "megatron/kernels/cuda/cross_entropy.cuh"
#include "megatron/kernels/cuda/shared_memory.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct WholeTask {
  const T* logits;
  T* dlogits;  // null: the loss alone
  const int64_t* labels;
  Compute<T>* loss;
  int64_t ignore_index, rows;
  int columns, valid;
  Compute<T> scale, smoothing, vocab_size, z_loss;

  __device__ bool has(int64_t label) const { return label >= 0 && label < valid; }
  __device__ Compute<T> loss_of(Compute<T> lse, Compute<T> target, Compute<T> total) const {
    if (smoothing > 0) target += smoothing * (total / vocab_size - target);
    return lse - target + z_loss * lse * lse;
  }
};

// A row lies spread over a cluster of blocks, each of which has its part in registers, as it came; the part
// of the next row is meanwhile on its way into shared memory. Blocks stay, and take every so many rows. Warps
// tell their sums to all blocks by stores that count themselves at a barrier of the receiver: a barrier of
// the cluster would wait for the gradients' stores too.
constexpr int kItems = 8, kClusterThreads = 1024, kMostRanks = 8;

template <class T, bool Smooth>
__global__ void __launch_bounds__(kClusterThreads) cluster_kernel(WholeTask<T> a, int part) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, kMostParts = kMostRanks * kClusterThreads / 32;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t arrived, told[2];
  // Of rows in turn: the next one's may come while this one's are still read. No warp tells the sums of the
  // row after that before all have told the next one's, and so have read these.
  __shared__ float2 sums[2][kMostParts];  // each warp's largest logit, and its sum relative to that
  __shared__ float totals[2][Smooth ? kMostParts : 1];
  T* x = reinterpret_cast<T*>(memory);
  const unsigned ranks = cluster_ranks(), rank = cluster_rank(), warps = blockDim.x / 32,
                 parts = ranks * warps;
  const int64_t clusters = gridDim.x / ranks, cluster = blockIdx.x / ranks;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const unsigned lane = threadIdx.x % 32, slot = rank * warps + threadIdx.x / 32;
  const int first = static_cast<int>(rank) * part, count = max(0, min(part, a.columns / W - first));
  const int cut = min(max(a.valid - first * W, 0), count * W), filled = (cut + W - 1) / W;  // what exists
  auto fetch = [&](int64_t row) {
    if (row >= a.rows || count == 0) return;
    expect_bytes(arrived, count * 16);
    copy_bulk(memory, a.logits + row * a.columns + first * W, count * 16, arrived);
  };
  if (thread == 0) {
    start_barrier(arrived);
    for (uint64_t& barrier : told) start_barrier(barrier);
    fetch(cluster);
  }
  cluster_barrier();
  int turn = 0;
  uint32_t phase = 0, turn_phase = 0;
  int64_t next_label = cluster < a.rows ? a.labels[cluster] : 0;
  for (int64_t row = cluster; row < a.rows; row += clusters) {
    const int64_t label = next_label;
    if (row + clusters < a.rows) next_label = a.labels[row + clusters];
    if (thread == 0) expect_bytes(told[turn], parts * (Smooth ? 12 : 8));
    if (count) wait_bytes(arrived, phase);
    phase ^= 1;
    // Columns that do not exist count as −∞; the vector where they begin gets them in shared memory.
    if (cut % W && filled && (filled - 1) % step == thread) {
      for (int c = cut; c < filled * W; ++c) x[c] = narrow<T>(lowest);
      order_copies();
    }
    Packed<T, W> held[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int v = thread + i * step;
#pragma unroll
      for (int w = 0; w < W / 2; ++w) held[i].word[w] = narrow_pair<T>(lowest, lowest);
      if (v < filled) held[i].put(read<W>(x + v * W));
    }
    // The label's place in this part, and whether it is this thread's.
    const int at = a.has(label) ? static_cast<int>(label) - first * W : -1;
    const bool mine = at >= 0 && at / W < count && at / W % step == thread;
    const float target = mine ? widen(x[at]) : 0.f;
    __syncthreads();
    if (thread == 0) fetch(row + clusters);
    float largest = lowest, sum = 0, total = 0, value[W];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      held[i].widened(value);
#pragma unroll
      for (int j = 0; j < W; ++j) largest = fmaxf(largest, value[j]);
      held[i].forget();
    }
    const float shift = largest == lowest ? 0.f : -largest * kRoughLog2e;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      held[i].widened(value);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        sum += exp2_rough(fmaf(value[j], kRoughLog2e, shift));
        if (Smooth && value[j] != lowest) total += value[j];
      }
      held[i].forget();
    }
    const float warp_largest = warp_reduce(largest, Maximum<float>{});
    sum = warp_sum(largest == lowest ? 0.f : sum * exp2_rough((largest - warp_largest) * kRoughLog2e));
    if (Smooth) total = warp_sum(total);
    if (lane < ranks) {
      tell(&sums[turn][slot], lane, make_float2(warp_largest, sum), told[turn]);
      if (Smooth) tell(&totals[turn][slot], lane, total, told[turn]);
    }
    wait_bytes(told[turn], turn_phase);
    float row_largest = lowest, row_sum = 0;
    total = 0;
    for (unsigned k = lane; k < parts; k += 32) row_largest = fmaxf(row_largest, sums[turn][k].x);
    row_largest = warp_reduce(row_largest, Maximum<float>{});
    for (unsigned k = lane; k < parts; k += 32) {
      row_sum += sums[turn][k].y * exp2_rough((sums[turn][k].x - row_largest) * kRoughLog2e);
      if (Smooth) total += totals[turn][k];
    }
    row_sum = warp_sum(row_sum);
    if (Smooth) total = warp_sum(total);
    const float lse = row_largest + logf(row_sum);
    const bool ignored = label == a.ignore_index;
    if (mine || (!a.has(label) && rank == 0 && thread == 0))
      a.loss[row] = ignored ? 0.f : a.loss_of(lse, target, total);
    if (a.dlogits) {
      T* dx = a.dlogits + row * a.columns + first * W;
      const float scale = ignored ? 0.f : a.scale, slope = scale * (1.f + 2 * a.z_loss * lse);
      const float uniform = scale * a.smoothing / a.vocab_size, minus_lse = -lse * kRoughLog2e;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int v = thread + i * step;
        if (v >= count) break;
        held[i].widened(value);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          value[j] = slope * exp2_rough(fmaf(value[j], kRoughLog2e, minus_lse));
          if (Smooth && (first + v) * W + j < a.valid) value[j] -= uniform;
        }
        if (mine && at / W == v) {
#pragma unroll
          for (int j = 0; j < W; ++j)
            if (v * W + j == at) value[j] -= scale * (1.f - a.smoothing);
        }
        store(dx + v * W, value);
      }
    }
    turn ^= 1;
    if (turn == 0) turn_phase ^= 1;
  }
  cluster_barrier();  // nobody leaves while another may still tell it something
#endif
}

// False where the GPU has no clusters, or a row is longer than the registers of the largest one: then nothing
// was done.
template <class T>
bool launch_cluster(const KernelContext& ctx, const WholeTask<T>& task) {
  constexpr int W = kVector<T>;
  const CudaProperties& gpu = runtime_of(ctx).properties();
  if (gpu.compute_capability < 90) return false;
  // Two blocks reach every multiprocessor, larger clusters leave some out: the fewest whose registers hold a
  // row and whose threads, one block or several side by side, nearly fill a multiprocessor.
  for (int ranks = 2; ranks <= kMostRanks; ranks *= 2) {
    const int part = static_cast<int>(blocks_for(task.columns / W, ranks));
    const int threads = static_cast<int>(blocks_for(part, kItems * 32)) * 32;
    const size_t bytes = static_cast<size_t>(part) * 16, beside = 8 << 10;  // what the kernel declares itself
    if (threads > kClusterThreads || bytes + beside > static_cast<size_t>(gpu.shared_memory_per_block))
      continue;
    if (ranks < kMostRanks && kClusterThreads / threads * threads < kClusterThreads * 3 / 4) continue;
    auto kernel = task.smoothing > 0 ? cluster_kernel<T, true> : cluster_kernel<T, false>;
    launch_clusters("cross_entropy", kernel, ranks, task.rows, static_cast<unsigned>(threads), bytes,
                    stream_of(ctx), task, part);
    return true;
  }
  return false;
}

// Any dtype and length: a block reads its row twice, the second time, with luck, from the GPU's cache.
template <class T, int W, bool Smooth>
__global__ void __launch_bounds__(1024) plain_kernel(WholeTask<T> a) {
  using C = Compute<T>;
  __shared__ MaxSum<C> partial[32];
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  const int64_t row = blockIdx.x, label = a.labels[row];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int begin = static_cast<int>(threadIdx.x) * W, step = static_cast<int>(blockDim.x) * W;
  const T* x = a.logits + row * a.columns;
  const C target = a.has(label) ? widen(x[label]) : C(0);  // before the gradient may take its place
  MaxSum<C> state;
  C total = 0;
  for (int i = begin; i < a.valid; i += step) {
    C value[W], largest = lowest;
    load(value, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (i + j >= a.valid) value[j] = lowest;
      largest = largest > value[j] ? largest : value[j];
    }
    if (largest > state.maximum) {
      state.sum *= exp_of(state.maximum - largest);
      state.maximum = largest;
    }
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (value[j] != lowest) {
        state.sum += exp_of(value[j] - state.maximum);
        if (Smooth) total += value[j];
      }
  }
  state = warp_merge(state);
  if (lane == 0) partial[warp] = state;
  __syncthreads();
  state = warp_merge(lane < warps ? partial[lane] : MaxSum<C>{});
  if (Smooth) total = block_sum(total);
  const C lse = state.maximum + log_of(state.sum);
  const bool ignored = label == a.ignore_index;
  if (threadIdx.x == 0) a.loss[row] = ignored ? C(0) : a.loss_of(lse, target, total);
  if (!a.dlogits) return;
  T* dx = a.dlogits + row * a.columns;
  const C slope = a.scale * (C(1) + 2 * a.z_loss * lse), uniform = a.scale * a.smoothing / a.vocab_size;
  for (int i = begin; i < a.columns; i += step) {
    C value[W];
    load(value, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      value[j] = slope * exp_of(value[j] - lse) - uniform;
      if (i + j == label) value[j] -= a.scale * (C(1) - a.smoothing);
      if (ignored || i + j >= a.valid) value[j] = 0;
    }
    store(dx + i, value);
  }
}

template <class T, int W>
void launch_plain(const KernelContext& ctx, const WholeTask<T>& task) {
  auto kernel = task.smoothing > 0 ? plain_kernel<T, W, true> : plain_kernel<T, W, false>;
  kernel<<<static_cast<unsigned>(task.rows), row_threads(task.columns, W), 0, stream_of(ctx)>>>(task);
  check_launch("cross_entropy");
}

}  // namespace

void cross_entropy(const KernelContext& ctx, const CrossEntropyArgs& args) {
  if (args.logits.numel() == 0) return;
  dispatch_float("cross_entropy", args.logits.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const WholeTask<T> task{pointer<T>(args.logits),
                            pointer<T>(args.dlogits),
                            pointer<int64_t>(args.labels),
                            pointer<C>(args.loss),
                            args.ignore_index,
                            args.logits.size(0),
                            static_cast<int>(args.logits.size(1)),
                            static_cast<int>(args.valid),
                            static_cast<C>(args.scale),
                            static_cast<C>(args.smoothing),
                            static_cast<C>(args.vocab_size),
                            static_cast<C>(args.z_loss)};
    constexpr int W = kVector<T>;
    if (task.columns % W || !aligned(task.logits) || !aligned(task.dlogits))
      return launch_plain<T, 1>(ctx, task);
    if constexpr (kRough<T>)
      if (launch_cluster(ctx, task)) return;
    launch_plain<T, W>(ctx, task);
  });
}

}  // namespace megatron::cuda
