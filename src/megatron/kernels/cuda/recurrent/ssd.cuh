#pragma once

#include "megatron/kernels/cuda/core/simt_gemm.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/cuda/recurrent/sequences.cuh"

// Mamba-2's scan in chunks: what a chunk does by itself is computed for all chunks at once, states pass
// between them one element a thread. A block treats one chunk of one head, or of one group of heads.
namespace megatron::cuda {

// SsdArgs as the device sees them, with what every pass needs for each token.
template <class T>
struct SsdTask {
  using C = Compute<T>;
  Sequences sequences;
  int64_t slots, heads, groups, stride, dt_stride;
  int channels, states, chunk, share;  // share: heads of a group
  C step_min, step_max;
  const T *xbc, *dt;
  const C *a_log, *d, *dt_bias;
  C *steps, *sums;  // [tokens, heads]: Δ, and the log-decays since the chunk began
  C* decays;        // [slots, heads]: of whole chunks
  C* cb;            // [slots, groups, chunk, chunk]: c_i · b_j for j ≤ i
  C* before;        // [slots, heads, channels, states]

  SsdTask(const SsdArgs& args)
      : sequences(args.rows, args.xbc.size(0)),
        slots(chunk_slots(args.xbc.size(0), args.rows.count, args.chunk)),
        heads(args.heads),
        groups(args.groups),
        stride(args.xbc.stride(0)),
        dt_stride(args.dt.stride(0)),
        channels(static_cast<int>(args.channels)),
        states(static_cast<int>(args.states)),
        chunk(static_cast<int>(args.chunk)),
        share(static_cast<int>(args.heads / args.groups)),
        step_min(static_cast<C>(args.step_min)),
        step_max(static_cast<C>(args.step_max)),
        xbc(pointer<T>(args.xbc)),
        dt(pointer<T>(args.dt)),
        a_log(pointer<C>(args.a_log)),
        d(pointer<C>(args.d)),
        dt_bias(pointer<C>(args.dt_bias)),
        before(pointer<C>(args.before)) {}

  __device__ C x(int64_t t, int64_t head, int p) const {
    return widen(xbc[t * stride + head * channels + p]);
  }
  __device__ C b(int64_t t, int64_t group, int n) const {
    return widen(xbc[t * stride + heads * channels + group * states + n]);
  }
  __device__ C c(int64_t t, int64_t group, int n) const {
    return widen(xbc[t * stride + heads * channels + (groups + group) * states + n]);
  }
  __device__ int64_t group_of(int64_t head) const { return head / share; }
  __device__ int64_t state_at(int64_t slot, int64_t head) const {
    return (slot * heads + head) * channels * states;
  }
  __device__ const C* cb_of(int64_t slot, int64_t group) const {
    return cb + (slot * groups + group) * chunk * chunk;
  }
  __device__ C rate(int64_t head) const { return -exp_of(a_log[head]); }
  __device__ C raw_step(int64_t t, int64_t head) const {
    return widen(dt[t * dt_stride + head]) + dt_bias[head];
  }
  __device__ int64_t at(int64_t t, int64_t head) const { return t * heads + head; }
  int64_t state_elements() const { return slots * heads * channels * states; }
  size_t token_bytes() const { return static_cast<size_t>(sequences.tokens * heads) * sizeof(C); }
};

// Memory for steps, sums, decays and cb; and, launched by it, what fills them.
template <class T>
struct SsdScratch {
  using C = Compute<T>;
  Scratch memory;

  static size_t bytes(const SsdTask<T>& task) {
    return 2 * task.token_bytes() +
           static_cast<size_t>(task.slots * (task.heads + task.groups * task.chunk * task.chunk)) * sizeof(C);
  }
  SsdScratch(const KernelContext& ctx, SsdTask<T>& task) : memory(ctx, bytes(task)) {
    task.steps = memory.as<C>();
    task.sums = task.steps + task.sequences.tokens * task.heads;
    task.decays = task.sums + task.sequences.tokens * task.heads;
    task.cb = task.decays + task.slots * task.heads;
  }
};

template <class T>
void prepare_ssd(const KernelContext& ctx, const SsdTask<T>& task);

void ssd_backward(const KernelContext& ctx, const SsdBackwardArgs& args);

// Σ over the other chunks, in place: into[slot] holds what a chunk adds, and then the state before it (with
// `reverse` the gradient after it, going backward in time).
template <class T>
void scan_chunks(const KernelContext& ctx, const SsdTask<T>& task, Compute<T>* into, bool reverse);

// What one tile of a chunk reads of the state before it: rows i (tokens) from i0, columns p (channels) from
// p0.
template <class T>
__device__ SimtTile<Compute<T>> ssd_state_tile(const SsdTask<T>& task, SimtSmem<Compute<T>>& memory,
                                               int64_t slot, int64_t begin, int length, int64_t head, int i0,
                                               int p0) {
  using C = Compute<T>;
  const int64_t group = task.group_of(head);
  const C* state = task.before + task.state_at(slot, head);
  SimtTile<C> tile;
  tile.template add<true, true>(
      memory, 0, task.states,
      [&](int i, int n) { return i0 + i < length ? task.c(begin + i0 + i, group, n) : C(0); },
      [&](int n, int p) { return p0 + p < task.channels ? state[(p0 + p) * task.states + n] : C(0); });
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int row = i0 + tile.row(i);
    C grown = row < length ? exp_of(task.sums[task.at(begin + row, head)]) : C(0);
#pragma unroll
    for (int j = 0; j < 4; ++j) tile.sum[i][j] *= grown;
  }
  return tile;
}

}  // namespace megatron::cuda
