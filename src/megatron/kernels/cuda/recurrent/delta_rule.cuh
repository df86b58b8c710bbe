#pragma once

#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/cuda/recurrent/sequences.cuh"

// The gated delta rule token by token. Columns of a state (value channels) do not meet, so each is carried by
// eight threads, which share its key channels and hold them in registers.
namespace megatron::cuda {

inline constexpr int kStateLanes = 8, kStateColumns = 32, kStateThreads = kStateLanes * kStateColumns;

template <class C>
__device__ __forceinline__ C lane_sum(C value) {
#pragma unroll
  for (int offset = kStateLanes / 2; offset; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The key channel of a thread's i-th register: four neighbours at a time.
__device__ __forceinline__ int state_channel(int i) {
  return (i / 4 * kStateLanes + static_cast<int>(threadIdx.x) % kStateLanes) * 4 + i % 4;
}

// DeltaRuleArgs as the device sees them, with what every pass needs for each token.
template <class T>
struct DeltaTask {
  using C = Compute<T>;
  Sequences sequences;
  int64_t slots, key_heads, value_heads, stride, b_stride, a_stride, width;
  int keys, values, chunk, share;  // share: value heads of a key head
  C epsilon, query_scale;
  const T *qkv, *b_in, *a_in;
  const C *a_log, *dt_bias;
  C *q, *k;                // [tokens, key heads, keys]: of unit length, q then scaled
  C *q_length, *k_length;  // [tokens, key heads]
  C *decay, *beta;         // [tokens, value heads]
  C* before;               // [slots, value heads, keys, values]; may be null
  C* carried;  // [sequences, value heads, keys, values]: moved on by a decoder's step; may be null

  explicit DeltaTask(const DeltaRuleArgs& args)
      : sequences(args.rows, args.qkv.size(0)),
        slots(chunk_slots(args.qkv.size(0), args.rows.count, args.chunk)),
        key_heads(args.key_heads),
        value_heads(args.value_heads),
        stride(args.qkv.stride(0)),
        b_stride(args.b.stride(0)),
        a_stride(args.a.stride(0)),
        width(args.qkv.size(1)),
        keys(static_cast<int>(args.key_channels)),
        values(static_cast<int>(args.value_channels)),
        chunk(static_cast<int>(args.chunk)),
        share(static_cast<int>(args.value_heads / args.key_heads)),
        epsilon(static_cast<C>(args.epsilon)),
        query_scale(C(1) / std::sqrt(static_cast<C>(args.key_channels))),
        qkv(pointer<T>(args.qkv)),
        b_in(pointer<T>(args.b)),
        a_in(pointer<T>(args.a)),
        a_log(pointer<C>(args.a_log)),
        dt_bias(pointer<C>(args.dt_bias)),
        before(pointer<C>(args.before)),
        carried(pointer<C>(args.state)) {}

  size_t scratch_bytes() const {
    return static_cast<size_t>(2 * sequences.tokens * (key_heads * (keys + 1) + value_heads)) * sizeof(C);
  }
  void use(C* memory) {
    const int64_t tokens = sequences.tokens;
    q = memory;
    k = q + tokens * key_heads * keys;
    q_length = k + tokens * key_heads * keys;
    k_length = q_length + tokens * key_heads;
    decay = k_length + tokens * key_heads;
    beta = decay + tokens * value_heads;
  }

  __device__ C rate(int64_t head) const { return -exp_of(a_log[head]); }
  __device__ C raw(int64_t t, int64_t head) const { return widen(a_in[t * a_stride + head]) + dt_bias[head]; }
  __device__ int64_t value_at(int64_t head) const { return 2 * key_heads * keys + head * values; }
  __device__ C* carried_state(int64_t sequence, int64_t head) const {
    return carried + (sequence * value_heads + head) * keys * values;
  }
  __device__ C* state_before(int64_t slot, int64_t head) const {
    return before + (slot * value_heads + head) * keys * values;
  }
};

// One token as a thread sees it: its share of the key channels, its column's value.
template <class T, int N>
struct DeltaToken {
  using C = Compute<T>;
  C q[N], k[N], v, decay, beta;

  __device__ void load(const DeltaTask<T>& task, int64_t t, int64_t head, int column) {
    const int64_t at = (t * task.key_heads + head / task.share) * task.keys;
    if (task.keys % 4 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const int channel = state_channel(i);
        Vec<C, 4> four_q{}, four_k{};
        if (channel < task.keys)
          four_q = read<4>(task.q + at + channel), four_k = read<4>(task.k + at + channel);
#pragma unroll
        for (int j = 0; j < 4; ++j) q[i + j] = four_q.v[j], k[i + j] = four_k.v[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int channel = state_channel(i);
        q[i] = channel < task.keys ? task.q[at + channel] : C(0);
        k[i] = channel < task.keys ? task.k[at + channel] : C(0);
      }
    }
    v = column < task.values ? widen(task.qkv[t * task.stride + task.value_at(head) + column]) : C(0);
    decay = task.decay[t * task.value_heads + head];
    beta = task.beta[t * task.value_heads + head];
  }
  // The state after the token.
  __device__ void advance(C (&state)[N]) const {
    C along = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) along += (state[i] *= decay) * k[i];
    const C delta = beta * (v - lane_sum(along));
#pragma unroll
    for (int i = 0; i < N; ++i) state[i] += k[i] * delta;
  }
};

// q, k, their lengths, decay and beta of all tokens.
template <class T>
void prepare_delta_rule(const KernelContext& ctx, const DeltaTask<T>& task);

void delta_rule_backward(const KernelContext& ctx, const DeltaRuleBackwardArgs& args);

// f(std::integral_constant<int, N>) with N key channels a thread; there are limits::kDeltaKeyChannels at
// most.
template <class F>
void dispatch_keys(int64_t keys, F&& f) {
  if (keys <= 64) return f(std::integral_constant<int, 8>{});
  if (keys <= 128) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 32>{});
}

}  // namespace megatron::cuda
