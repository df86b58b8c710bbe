#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/recurrent/delta_mma_backward.cuh"

namespace megatron::cuda {
namespace {

// Columns of a row of a state in shared memory, one unused: so threads meet different banks, those of a warp
// as well as those that each sum a row.
constexpr int kStateRow = kStateColumns + 1;

template <class T>
struct DeltaGrads {
  using C = Compute<T>;
  const T* d_o;
  int64_t d_o_stride;
  T *dqkv, *db, *da;
  int group;        // tokens whose states shared memory holds
  int splits;       // blocks that share the columns of a head
  C* checkpoints;   // of each block: states at the beginnings of groups, by thread
  C *dq, *dk;       // [splits, tokens, value heads, keys]
  C *dbeta, *dlog;  // [splits, tokens, value heads]: of beta, of the log of the decay
};

// For each pair of a token of the group and a key channel, its row of a state.
template <class T, class Target>
__device__ void sum_columns(const DeltaTask<T>& task, int tokens, const Compute<T>* states, Target target) {
  using C = Compute<T>;
  for (int e = threadIdx.x; e < tokens * task.keys; e += kStateThreads) {
    const int s = e / task.keys, channel = e - s * task.keys;
    const C* row = states + (static_cast<int64_t>(s) * task.keys + channel) * kStateRow;
    target(s, channel, row);
  }
}

// One value head along one sequence, its columns 32 at a time, backward in time. States are made again from
// those before chunks: first up to the beginning of each group of tokens, then inside of one group.
template <class T, int N>
__global__ void __launch_bounds__(kStateThreads) backward_kernel(DeltaTask<T> task, DeltaGrads<T> grads) {
  using C = Compute<T>;
  extern __shared__ char memory[];
  C* states = reinterpret_cast<C*>(memory);                                     // [group, keys, row]
  C* d_o = states + static_cast<int64_t>(grads.group) * task.keys * kStateRow;  // [group, columns]
  C *betas = d_o + grads.group * kStateColumns, *logs = betas + grads.group * kStateColumns;
  const int own = threadIdx.x / kStateLanes, lane = threadIdx.x % kStateLanes, split = blockIdx.x;
  const int64_t head = blockIdx.y, tokens = task.sequences.tokens;
  const int64_t block = (static_cast<int64_t>(blockIdx.z) * gridDim.y + head) * grads.splits + split;
  const int groups = (task.chunk + grads.group - 1) / grads.group;
  C* checkpoints = grads.checkpoints + block * groups * N * kStateThreads + threadIdx.x;
  auto place = [&](int s, int i) -> C& {
    return states[(static_cast<int64_t>(s) * task.keys + state_channel(i)) * kStateRow + own];
  };
  auto held = [&](int i) { return state_channel(i) < task.keys; };
  DeltaToken<T, N> token;
  for (int64_t sequence = blockIdx.z; sequence < task.sequences.count; sequence += gridDim.z) {
    const TokenSpan span = task.sequences.span(sequence);
    const int64_t first = task.sequences.first_slot(sequence, task.chunk);
    const int64_t chunks = (span.end - span.begin + task.chunk - 1) / task.chunk;
    for (int column0 = split * kStateColumns; column0 < task.values;
         column0 += grads.splits * kStateColumns) {
      const int column = column0 + own;
      const bool fresh = column0 == split * kStateColumns, real = column < task.values;
      C state[N], dstate[N] = {};
      for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
        const int64_t begin = span.begin + chunk * task.chunk, end = min(begin + task.chunk, span.end);
        const C* saved = task.state_before(first + chunk, head);
#pragma unroll
        for (int i = 0; i < N; ++i)
          state[i] = real && held(i) ? saved[state_channel(i) * task.values + column] : C(0);
        const int used = static_cast<int>((end - begin + grads.group - 1) / grads.group);
        for (int g = 0; g < used; ++g) {
#pragma unroll
          for (int i = 0; i < N; ++i) checkpoints[(g * N + i) * kStateThreads] = state[i];
          if (g + 1 == used) break;
          for (int64_t t = begin + g * grads.group; t < begin + (g + 1) * grads.group; ++t) {
            token.load(task, t, head, column);
            token.advance(state);
          }
        }
        for (int g = used - 1; g >= 0; --g) {
          const int64_t from = begin + g * grads.group;
          const int count = static_cast<int>(min(int64_t{grads.group}, end - from));
#pragma unroll
          for (int i = 0; i < N; ++i) state[i] = checkpoints[(g * N + i) * kStateThreads];
          for (int s = 0; s < count; ++s) {
            token.load(task, from + s, head, column);
            token.advance(state);
#pragma unroll
            for (int i = 0; i < N; ++i)
              if (held(i)) place(s, i) = state[i];
            if (lane == 0)
              d_o[s * kStateColumns + own] =
                  real ? widen(grads.d_o[(from + s) * grads.d_o_stride + head * task.values + column]) : C(0);
          }
          __syncthreads();
          sum_columns(task, count, states, [&](int s, int channel, const C* row) {
            C sum = 0;
            for (int c = 0; c < kStateColumns; ++c) sum += row[c] * d_o[s * kStateColumns + c];
            C& target =
                grads.dq[((split * tokens + from + s) * task.value_heads + head) * task.keys + channel];
            target = fresh ? sum : target + sum;
          });
          __syncthreads();
          for (int s = count - 1; s >= 0; --s) {
            const int64_t t = from + s;
            token.load(task, t, head, column);
            const C grad = d_o[s * kStateColumns + own];
            C along = 0, push = 0, kept[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
              const C old = s == 0    ? checkpoints[(g * N + i) * kStateThreads]
                            : held(i) ? place(s - 1, i)
                                      : C(0);
              kept[i] = old * token.decay;
              dstate[i] += token.q[i] * grad;
              along += kept[i] * token.k[i];
              push += dstate[i] * token.k[i];
            }
            const C error = token.v - lane_sum(along);
            push = lane_sum(push);  // the gradient of what is written
            C dlog = 0;
#pragma unroll
            for (int i = 0; i < N; ++i) {
              if (held(i)) place(s, i) = dstate[i] * error - kept[i] * push;  // of the key, over the strength
              const C dkept = dstate[i] - token.k[i] * token.beta * push;
              dlog += dkept * kept[i];
              dstate[i] = dkept * token.decay;
            }
            dlog = lane_sum(dlog);
            if (lane != 0) continue;
            betas[s * kStateColumns + own] = push * error;
            logs[s * kStateColumns + own] = dlog;
            if (real)
              grads.dqkv[t * task.width + task.value_at(head) + column] = narrow<T>(token.beta * push);
          }
          __syncthreads();
          sum_columns(task, count, states, [&](int s, int channel, const C* row) {
            C sum = 0;
            for (int c = 0; c < kStateColumns; ++c) sum += row[c];
            sum *= task.beta[(from + s) * task.value_heads + head];
            C& target =
                grads.dk[((split * tokens + from + s) * task.value_heads + head) * task.keys + channel];
            target = fresh ? sum : target + sum;
          });
          for (int e = threadIdx.x; e < 2 * count; e += kStateThreads) {
            const int s = e / 2;
            const C* row = (e % 2 ? logs : betas) + s * kStateColumns;
            C sum = 0;
            for (int c = 0; c < kStateColumns; ++c) sum += row[c];
            C& target =
                (e % 2 ? grads.dlog : grads.dbeta)[(split * tokens + from + s) * task.value_heads + head];
            target = fresh ? sum : target + sum;
          }
          __syncthreads();
        }
      }
    }
  }
}

// The gradients of b and a; dbeta and dlog become what a token adds to those of dt_bias and a_log.
template <class T>
struct GateGradOp {
  DeltaTask<T> task;
  DeltaGrads<T> grads;
  template <int W>
  __device__ void run(int64_t i) const {
    using C = Compute<T>;
    const int64_t t = i / task.value_heads, head = i - t * task.value_heads;
    const int64_t elements = task.sequences.tokens * task.value_heads;
    C dbeta = 0, dlog = 0;
    for (int s = 0; s < grads.splits; ++s) {
      dbeta += grads.dbeta[s * elements + i];
      dlog += grads.dlog[s * elements + i];
    }
    const C raw = task.raw(t, head), rate = task.rate(head), beta = task.beta[i];
    grads.db[i] = narrow<T>(dbeta * beta * (C(1) - beta));
    const C draw = dlog * rate * sigmoid<false>(raw);
    grads.da[i] = narrow<T>(draw);
    grads.dbeta[i] = draw;
    grads.dlog[i] = dlog * rate * softplus(raw);
  }
};

// One block per head and gradient sums the rows, of tokens or of chunks.
template <class C>
__global__ void head_sums_kernel(const C* dbias, const C* da_log, int64_t rows, int64_t heads, C* out_bias,
                                 C* out_log) {
  const C* in = (blockIdx.y ? da_log : dbias) + blockIdx.x;
  C sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) sum += in[row * heads];
  sum = block_sum(sum);
  if (threadIdx.x == 0) (blockIdx.y ? out_log : out_bias)[blockIdx.x] = sum;
}

// The gradients of q and k from those of their unit vectors: a warp per token, key head and one of the two.
template <class T>
__global__ void __launch_bounds__(kThreads) unscale_kernel(DeltaTask<T> task, DeltaGrads<T> grads) {
  using C = Compute<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t tokens = task.sequences.tokens;
  if (row >= 2 * tokens * task.key_heads) return;
  const bool key = row % 2;
  const int64_t at = row / 2, t = at / task.key_heads, head = at - t * task.key_heads;
  const int lane = threadIdx.x % 32;
  const C *parts = key ? grads.dk : grads.dq, *scaled = (key ? task.k : task.q) + at * task.keys;
  const C length = (key ? task.k_length : task.q_length)[at], scale = key ? C(1) : task.query_scale;
  auto gradient = [&](int i) {
    C sum = 0;
    for (int h = 0; h < task.share; ++h)
      for (int s = 0; s < grads.splits; ++s)
        sum += parts[((s * tokens + t) * task.value_heads + head * task.share + h) * task.keys + i];
    return sum;
  };
  C along = 0, own[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int i = lane + 32 * j;
    own[j] = i < task.keys ? gradient(i) : C(0);
    if (i < task.keys) along += own[j] * scaled[i];
  }
  along = warp_sum(along);
  T* out = grads.dqkv + t * task.width + ((key ? task.key_heads : 0) + head) * task.keys;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (int i = lane + 32 * j; i < task.keys)
      out[i] = narrow<T>((scale * own[j] - scaled[i] * along / scale) / length);
}

template <class C>
void sum_heads(const DeltaRuleBackwardArgs& args, const C* dbias, const C* da_log, int64_t rows,
               int64_t heads, cudaStream_t stream) {
  head_sums_kernel<C><<<dim3(heads, 2), kThreads, 0, stream>>>(
      dbias, da_log, rows, heads, pointer<C>(args.ddt_bias), pointer<C>(args.da_log));
  check_launch("delta_rule_backward");
}

void backward_on_tensor_cores(const KernelContext& ctx, const DeltaRuleBackwardArgs& args,
                              const DeltaTask<bfloat>& plain) {
  DeltaChunks task(plain);
  Scratch scratch(ctx, task.bytes(true)), more(ctx, DeltaChunkGrads::bytes(task));
  task.use_chunks(scratch.as<char>(), true);
  DeltaChunkGrads grads{pointer<bfloat>(args.d_o), args.d_o.stride(0), pointer<bfloat>(args.dqkv),
                        pointer<bfloat>(args.db), pointer<bfloat>(args.da)};
  grads.use(task, more.as<char>());
  const int64_t parts = task.slots * task.value_heads;
  delta_chunks_backward(task, grads, stream_of(ctx));
  sum_heads<float>(args, grads.partials, grads.partials + parts, task.slots, task.value_heads,
                   stream_of(ctx));
}

template <class T>
void backward(const KernelContext& ctx, const DeltaRuleBackwardArgs& args) {
  using C = Compute<T>;
  DeltaTask<T> task(args.forward);
  if constexpr (std::is_same_v<T, bfloat>)
    if (task.sequences.tokens > 0 && fits_delta_tiles(task) && args.d_o.stride(0) % 8 == 0 &&
        aligned(args.d_o.raw()) &&
        static_cast<size_t>(runtime_of(ctx).properties().shared_memory_per_block) >= delta_bwd_qk_smem())
      return backward_on_tensor_cores(ctx, args, task);
  const int64_t tokens = task.sequences.tokens, heads = task.value_heads;
  const CudaProperties& gpu = runtime_of(ctx).properties();
  cudaStream_t stream = stream_of(ctx);
  dispatch_keys(task.keys, [&]<int N>(std::integral_constant<int, N>) {
    const auto state_bytes = static_cast<int64_t>(sizeof(C)) * (task.keys * kStateRow + 3 * kStateColumns);
    DeltaGrads<T> grads{pointer<T>(args.d_o), args.d_o.stride(0), pointer<T>(args.dqkv), pointer<T>(args.db),
                        pointer<T>(args.da)};
    grads.group = static_cast<int>(
        std::clamp<int64_t>(gpu.shared_memory_per_block / 3 / state_bytes, 1, std::min(8, task.chunk)));
    const auto sequences = static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 1024));
    const int64_t blocks = std::max<int64_t>(1, heads * sequences);
    grads.splits = static_cast<int>(
        std::clamp<int64_t>(2 * gpu.sm_count / blocks, 1, blocks_for(task.values, kStateColumns)));
    const int64_t groups = (task.chunk + grads.group - 1) / grads.group;
    const int64_t kept = blocks * grads.splits * groups * N * kStateThreads;
    const int64_t vectors = grads.splits * tokens * heads * task.keys,
                  scalars = grads.splits * tokens * heads;
    Scratch scratch(ctx, task.scratch_bytes() + sizeof(C));
    Scratch more(ctx, static_cast<size_t>(kept + 2 * vectors + 2 * scalars) * sizeof(C));
    task.use(scratch.as<C>());
    grads.checkpoints = more.as<C>();
    grads.dq = grads.checkpoints + kept;
    grads.dk = grads.dq + vectors;
    grads.dbeta = grads.dk + vectors;
    grads.dlog = grads.dbeta + scalars;
    if (tokens > 0) {
      prepare_delta_rule(ctx, task);
      const size_t shared = static_cast<size_t>(grads.group * state_bytes);
      allow_shared_memory(backward_kernel<T, N>, shared);
      dim3 grid(grads.splits, heads, sequences);
      backward_kernel<T, N><<<grid, kStateThreads, shared, stream>>>(task, grads);
      check_launch("delta_rule_backward");
      for_each<1>(ctx, "delta_rule_backward", tokens * heads, false, GateGradOp<T>{task, grads});
      unscale_kernel<T>
          <<<blocks_for(2 * tokens * task.key_heads, kThreads / 32), kThreads, 0, stream>>>(task, grads);
      check_launch("delta_rule_backward");
    }
    sum_heads<C>(args, grads.dbeta, grads.dlog, tokens, heads, stream);
  });
}

}  // namespace

void delta_rule_backward(const KernelContext& ctx, const DeltaRuleBackwardArgs& args) {
  dispatch_float("delta_rule_backward", args.forward.qkv.dtype(),
                 [&]<class T>(Type<T>) { backward<T>(ctx, args); });
}

}  // namespace megatron::cuda
