#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/recurrent/delta_rule.cuh"

// The delta rule with a decay for each key channel, token by token. As in delta_rule.cuh a column of a state
// is carried by eight threads; a block carries 32 columns of one value head along a sequence. On the way back
// states of a chunk are made again into global memory, and what key channels gather over columns is summed in
// shared memory: [4 gradients, warps, key channels].
namespace megatron::cuda {
namespace {

constexpr int kWarps = kStateThreads / 32, kGathered = 4;

template <class T>
struct ChannelTask {
  using C = Compute<T>;
  Sequences sequences;
  int64_t key_heads, value_heads, q_stride, k_stride, e_stride, g_stride, v_stride;
  int keys, values, chunk, share;  // share: value heads of a key head
  const T *q, *k, *e, *v;
  const C* g;
  C* before;   // [slots, value heads, keys, values]; may be null
  C* carried;  // [sequences, value heads, keys, values]; may be null

  explicit ChannelTask(const ChannelDeltaArgs& args)
      : sequences(args.rows, args.q.size(0)),
        key_heads(args.key_heads),
        value_heads(args.value_heads),
        q_stride(args.q.stride(0)),
        k_stride(args.k.stride(0)),
        e_stride(args.e.stride(0)),
        g_stride(args.g.stride(0)),
        v_stride(args.v.stride(0)),
        keys(static_cast<int>(args.key_channels)),
        values(static_cast<int>(args.value_channels)),
        chunk(static_cast<int>(args.chunk)),
        share(static_cast<int>(args.value_heads / args.key_heads)),
        q(pointer<T>(args.q)),
        k(pointer<T>(args.k)),
        e(pointer<T>(args.e)),
        v(pointer<T>(args.v)),
        g(pointer<C>(args.g)),
        before(pointer<C>(args.before)),
        carried(pointer<C>(args.state)) {}

  __device__ C* state(C* states, int64_t slot, int64_t head) const {
    return states + (slot * value_heads + head) * keys * values;
  }
};

// One token as a thread sees it: its share of the key channels, its column's value.
template <class T, int N>
struct ChannelToken {
  using C = Compute<T>;
  C q[N], k[N], e[N], decay[N], v;

  __device__ void load(const ChannelTask<T>& task, int64_t t, int64_t head, int column) {
    const int64_t at = head / task.share * task.keys;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int channel = state_channel(i);
      const bool held = channel < task.keys;
      q[i] = held ? widen(task.q[t * task.q_stride + at + channel]) : C(0);
      k[i] = held ? widen(task.k[t * task.k_stride + at + channel]) : C(0);
      e[i] = held ? widen(task.e[t * task.e_stride + at + channel]) : C(0);
      decay[i] = held ? exp_of(task.g[t * task.g_stride + at + channel]) : C(0);
    }
    v = column < task.values ? widen(task.v[t * task.v_stride + head * task.values + column]) : C(0);
  }
  // The state after the token.
  __device__ void advance(C (&state)[N]) const {
    C along = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) along += (state[i] *= decay[i]) * e[i];
    const C delta = v - lane_sum(along);
#pragma unroll
    for (int i = 0; i < N; ++i) state[i] += k[i] * delta;
  }
};

template <class C, int N>
__device__ void read_state(C (&state)[N], const C* from, int keys, int values, int column) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int channel = state_channel(i);
    state[i] = from && column < values && channel < keys ? from[channel * values + column] : C(0);
  }
}
template <class C, int N>
__device__ void write_state(const C (&state)[N], C* to, int keys, int values, int column) {
  if (column >= values) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (int channel = state_channel(i); channel < keys) to[channel * values + column] = state[i];
}

template <class T, int N>
__global__ void __launch_bounds__(kStateThreads) forward_kernel(ChannelTask<T> task, T* o) {
  using C = Compute<T>;
  const int column = blockIdx.x * kStateColumns + threadIdx.x / kStateLanes;
  const int64_t head = blockIdx.y;
  for (int64_t s = blockIdx.z; s < task.sequences.count; s += gridDim.z) {
    const TokenSpan span = task.sequences.span(s);
    const int64_t first = task.sequences.first_slot(s, task.chunk);
    C state[N];
    read_state(state, task.carried ? task.state(task.carried, s, head) : nullptr, task.keys, task.values,
               column);
    ChannelToken<T, N> token;
    for (int64_t t = span.begin; t < span.end; ++t) {
      if (task.before && (t - span.begin) % task.chunk == 0)
        write_state(state, task.state(task.before, first + (t - span.begin) / task.chunk, head), task.keys,
                    task.values, column);
      token.load(task, t, head, column);
      token.advance(state);
      C out = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) out += state[i] * token.q[i];
      out = lane_sum(out);
      if (threadIdx.x % kStateLanes == 0 && column < task.values)
        o[(t * task.value_heads + head) * task.values + column] = narrow<T>(out);
    }
    if (task.carried && span.end > span.begin)
      write_state(state, task.state(task.carried, s, head), task.keys, task.values, column);
  }
}

template <class T>
struct ChannelGrads {
  using C = Compute<T>;
  const T* d_o;
  int64_t d_o_stride;
  T* dv;
  C* made;      // [blocks, chunk, key channels a thread, threads]: states before tokens
  C* gathered;  // [4: q, k, e, g; tokens, value heads, keys]
};

template <class T, int N>
__global__ void __launch_bounds__(kStateThreads) backward_kernel(ChannelTask<T> task, ChannelGrads<T> grads) {
  using C = Compute<T>;
  extern __shared__ char memory[];
  C* sums = reinterpret_cast<C*>(memory);
  const int own = threadIdx.x / kStateLanes, lane = threadIdx.x % kStateLanes, warp = threadIdx.x / 32;
  const int64_t head = blockIdx.x, each = task.sequences.tokens * task.value_heads * task.keys;
  C* made = grads.made +
            (static_cast<int64_t>(blockIdx.y) * gridDim.x + head) * task.chunk * N * kStateThreads +
            threadIdx.x;
  for (int64_t s = blockIdx.y; s < task.sequences.count; s += gridDim.y) {
    const TokenSpan span = task.sequences.span(s);
    const int64_t first = task.sequences.first_slot(s, task.chunk);
    const int64_t chunks = (span.end - span.begin + task.chunk - 1) / task.chunk;
    for (int column0 = 0; column0 < task.values; column0 += kStateColumns) {
      const int column = column0 + own;
      const bool real = column < task.values;
      C state[N], dstate[N] = {};
      ChannelToken<T, N> token;
      for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
        const int64_t begin = span.begin + chunk * task.chunk, end = min(begin + task.chunk, span.end);
        read_state(state, task.state(task.before, first + chunk, head), task.keys, task.values, column);
        for (int64_t t = begin; t < end; ++t) {
#pragma unroll
          for (int i = 0; i < N; ++i) made[((t - begin) * N + i) * kStateThreads] = state[i];
          if (t + 1 == end) break;
          token.load(task, t, head, column);
          token.advance(state);
        }
        for (int64_t t = end - 1; t >= begin; --t) {
          token.load(task, t, head, column);
          const C d_o = real ? widen(grads.d_o[t * grads.d_o_stride + head * task.values + column]) : C(0);
          C along = 0, ddelta = 0;
#pragma unroll
          for (int i = 0; i < N; ++i) {
            state[i] = made[((t - begin) * N + i) * kStateThreads] * token.decay[i];
            along += state[i] * token.e[i];
            ddelta += (dstate[i] += token.q[i] * d_o) * token.k[i];
          }
          const C delta = token.v - lane_sum(along);
          ddelta = lane_sum(ddelta);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const C dkept = dstate[i] - token.e[i] * ddelta;
            C parts[kGathered] = {(state[i] + token.k[i] * delta) * d_o, dstate[i] * delta,
                                  -state[i] * ddelta, dkept * state[i]};
            dstate[i] = dkept * token.decay[i];
#pragma unroll
            for (int p = 0; p < kGathered; ++p) {  // over the columns of the warp
              parts[p] += __shfl_xor_sync(0xffffffffu, parts[p], kStateLanes);
              parts[p] += __shfl_xor_sync(0xffffffffu, parts[p], 2 * kStateLanes);
              if (threadIdx.x % 32 < kStateLanes && state_channel(i) < task.keys)
                sums[(p * kWarps + warp) * task.keys + state_channel(i)] = parts[p];
            }
          }
          if (lane == 0 && real)
            grads.dv[(t * task.value_heads + head) * task.values + column] = narrow<T>(ddelta);
          __syncthreads();
          for (int j = threadIdx.x; j < kGathered * task.keys; j += kStateThreads) {
            const int p = j / task.keys, channel = j - p * task.keys;
            C sum = 0;
            for (int w = 0; w < kWarps; ++w) sum += sums[(p * kWarps + w) * task.keys + channel];
            C& target = grads.gathered[p * each + (t * task.value_heads + head) * task.keys + channel];
            target = column0 == 0 ? sum : target + sum;
          }
          __syncthreads();
        }
      }
    }
  }
}

// Over the value heads that share a key head.
template <class T>
struct GatherOp {
  using C = Compute<T>;
  const C* gathered;
  int64_t each, keys;
  int share;
  T *dq, *dk, *de;
  C* dg;
  template <int W>
  __device__ void run(int64_t i) const {
    const int64_t row = i / keys, channel = i - row * keys;  // row: token and key head
    C sums[kGathered] = {};
    for (int h = 0; h < share; ++h)
#pragma unroll
      for (int p = 0; p < kGathered; ++p) sums[p] += gathered[p * each + (row * share + h) * keys + channel];
    dq[i] = narrow<T>(sums[0]);
    dk[i] = narrow<T>(sums[1]);
    de[i] = narrow<T>(sums[2]);
    dg[i] = sums[3];
  }
};

void channel_delta(const KernelContext& ctx, const ChannelDeltaArgs& args) {
  if (args.o.numel() == 0) return;
  dispatch_float("channel_delta", args.q.dtype(), [&]<class T>(Type<T>) {
    const ChannelTask<T> task(args);
    dispatch_keys(task.keys, [&]<int N>(std::integral_constant<int, N>) {
      dim3 grid(blocks_for(task.values, kStateColumns), task.value_heads,
                static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
      forward_kernel<T, N><<<grid, kStateThreads, 0, stream_of(ctx)>>>(task, pointer<T>(args.o));
    });
    check_launch("channel_delta");
  });
}

void channel_delta_backward(const KernelContext& ctx, const ChannelDeltaBackwardArgs& args) {
  if (args.dv.numel() == 0) return;
  dispatch_float("channel_delta_backward", args.forward.q.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const ChannelTask<T> task(args.forward);
    dispatch_keys(task.keys, [&]<int N>(std::integral_constant<int, N>) {
      const auto sequences = static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 32));
      const int64_t each = task.sequences.tokens * task.value_heads * task.keys;
      const int64_t made =
          static_cast<int64_t>(sequences) * task.value_heads * task.chunk * N * kStateThreads;
      Scratch scratch(ctx, static_cast<size_t>(made + kGathered * each) * sizeof(C));
      ChannelGrads<T> grads{pointer<T>(args.d_o), args.d_o.stride(0), pointer<T>(args.dv), scratch.as<C>(),
                            scratch.as<C>() + made};
      const size_t shared = static_cast<size_t>(kGathered * kWarps * task.keys) * sizeof(C);
      allow_shared_memory(backward_kernel<T, N>, shared);
      backward_kernel<T, N>
          <<<dim3(task.value_heads, sequences), kStateThreads, shared, stream_of(ctx)>>>(task, grads);
      check_launch("channel_delta_backward");
      for_each<1>(ctx, "channel_delta_backward", task.sequences.tokens * task.key_heads * task.keys, false,
                  GatherOp<T>{grads.gathered, each, task.keys, task.share, pointer<T>(args.dq),
                              pointer<T>(args.dk), pointer<T>(args.de), pointer<C>(args.dg)});
    });
  });
}

}  // namespace

void add_channel_delta_kernels(KernelTable& table) {
  table.channel_delta = channel_delta;
  table.channel_delta_backward = channel_delta_backward;
}

}  // namespace megatron::cuda
