#include "megatron/kernels/cuda/recurrent/delta_mma_backward.cuh"

namespace megatron::cuda {
namespace {

struct CarryBackSmem {
  bfloat k[2][DeltaRows::kElements], q[DeltaRows::kElements], d_o[DeltaPart::kElements];
  bfloat state[2][DeltaState::kElements], part[2][DeltaPart::kElements];  // in two parts
  float g_cumsum[2][kDeltaChunk], k_scale[2][kDeltaChunk], q_scale[2][kDeltaChunk], beta[2][kDeltaChunk];
  float reads[kDeltaChunk];
};

// Stores the accumulators of a warp's 16 rows of half a matrix as mma fragments in two parts.
__device__ __forceinline__ void save_wide(const float (&acc)[kDeltaColumns / 8][4], uint4* high, uint4* low,
                                          int column0) {
#pragma unroll
  for (int step = 0; step < kDeltaColumns / 16; ++step) {
    uint4 h, l;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      split(acc[2 * step + i / 2][i % 2 * 2], acc[2 * step + i / 2][i % 2 * 2 + 1], (&h.x)[i], (&l.x)[i]);
    const int at = wide_fragment_index(column0 / 16 + step, static_cast<int>(threadIdx.x) / 32);
    high[at] = h;
    low[at] = l;
  }
}

// State-gradient carry of one value head along one sequence, from its end (mma.sync m16n8k16).
// Math, chunk by chunk: z = Tᵀ (Pᵀ do + e^(G_L − G) k dS), dv = β z, dS ← e^(G_L) dS + qᵀ e^G do − kᵀ e^G β
// z. z and the dS after each chunk are stored for delta_bwd_qk.
// Grid: (2 halves of the value channels, value heads, sequences). Four warps hold 32 key channels × 64 value
// channels of dS each, in registers.
// Shared memory: CarryBackSmem: two buffers of k, one of q and do, dS and a [64, 64] operand each in two
// bf16 parts, g_cumsum, beta and scales.
// Barriers: __syncthreads between steps. cp.async loads k of the next chunk meanwhile.
__global__ void __launch_bounds__(kMmaThreads, 2)
    delta_carry_back_kernel(const __grid_constant__ DeltaChunks task,
                            const __grid_constant__ DeltaChunkGrads grads) {
  extern __shared__ __align__(128) char raw_memory[];
  auto& memory = *reinterpret_cast<CarryBackSmem*>(raw_memory);
  const int64_t head = blockIdx.y, key_head = head / task.share;
  const int column0 = blockIdx.x * kDeltaColumns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp * 16 + lane / 4, pair = lane % 4 * 2;
  const DeltaRows q{memory.q};
  const DeltaState high{memory.state[0]}, low{memory.state[1]};
  const DeltaPart d_o{memory.d_o}, part{memory.part[0]}, part_rest{memory.part[1]};
  for (int64_t sequence = blockIdx.z; sequence < task.sequences.count; sequence += gridDim.z) {
    const TokenSpan span = task.sequences.span(sequence);
    const int64_t first = task.sequences.first_slot(sequence, kDeltaChunk);
    const DeltaSpan seq{span.begin, span.end};
    const int chunks = seq.chunks();
    float state[2][kDeltaColumns / 8][4];
    clear(state[0]);
    clear(state[1]);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * DeltaState::kElements / 8; i += kMmaThreads)
      reinterpret_cast<uint4*>(memory.state[0])[i] = {};
    if (chunks > 0) fetch_keys(memory, task, seq, head, key_head, chunks - 1);
    cp_async_commit();
    for (int c = chunks - 1; c >= 0; --c) {
      const int64_t slot = first + c, begin = seq.begin_of(c), matrix = task.matrix_at(slot, head);
      const int length = seq.length_of(c), buffer = c & 1;
      const DeltaRows k{memory.k[buffer]};
      save_state(grads.after + (slot * task.value_heads + head) * kDeltaChannels * kDeltaChannels + column0,
                 state);
      cp_async_wait<0>();
      __syncthreads();
      d_o.fill_rows(grads.d_o_rows(head, begin) + column0, grads.d_o_stride, length);
      q.fill_rows(task.q_rows(key_head, begin), task.stride, length);
      cp_async_commit();
      if (c > 0) {
        fetch_keys(memory, task, seq, head, key_head, c - 1);
        const int64_t at = task.matrix_at(slot - 1, head);
        for (int i = threadIdx.x * 8; i < kFragmentSize; i += kMmaThreads * 8) {
          prefetch(task.inverse_back + at + i);
          prefetch(task.inverse_back_rest + at + i);
          prefetch(task.passed_back + at + i);
          prefetch(task.passed_back_rest + at + i);
        }
        if (int i = threadIdx.x; i < kDeltaChunk) {
          prefetch(grads.d_o_rows(head, seq.begin_of(c - 1) + i) + column0);
          prefetch(task.q_rows(key_head, seq.begin_of(c - 1) + i));
          prefetch(task.q_rows(key_head, seq.begin_of(c - 1) + i) + 64);
        }
      }
      cp_async_commit();
      const float *g_cumsum = memory.g_cumsum[buffer], total = g_cumsum[length - 1];
      float leaving[2], entering[2], beta[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int own = row + 8 * h;
        beta[h] = memory.beta[buffer][own];
        leaving[h] = exp_of(total - g_cumsum[own]) * memory.k_scale[buffer][own];
        entering[h] = -exp_of(g_cumsum[own]) * memory.k_scale[buffer][own] * beta[h];
      }
      if (int i = threadIdx.x; i < kDeltaChunk)
        memory.reads[i] = exp_of(g_cumsum[i]) * memory.q_scale[buffer][i];
      float acc[kDeltaColumns / 8][4];
      clear(acc);
      add_over_keys<false>(acc, k, high, low, acc, k);
#pragma unroll
      for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] *= leaving[i / 2];
      uint4 a_frag[4], a_rest[4];
      load_fragment(a_frag, task.passed_back + matrix);
      load_fragment(a_rest, task.passed_back_rest + matrix);
      cp_async_wait<1>();
      __syncthreads();
      add_triangle<true>(acc, a_frag, d_o);
      add_triangle<true>(acc, a_rest, d_o);
      load_fragment(a_frag, task.inverse_back + matrix);
      load_fragment(a_rest, task.inverse_back_rest + matrix);
      constexpr float whole[2] = {1, 1};
      write_split(part, part_rest, acc, whole);
      __syncthreads();
      clear(acc);
      add_triangle<true>(acc, a_frag, part);
      add_triangle<true>(acc, a_frag, part_rest);
      add_triangle<true>(acc, a_rest, part);
      const int64_t wide = (slot * task.value_heads + head) * kWideFragmentSize;
      save_wide(acc, grads.z + wide, grads.z_rest + wide, column0);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (row + 8 * h < length) {
          bfloat* to = grads.dqkv + (begin + row + 8 * h) * task.width + task.value_at(head) + column0 + pair;
#pragma unroll
          for (int n = 0; n < kDeltaColumns / 8; ++n)
            *reinterpret_cast<uint32_t*>(to + n * 8) =
                narrow_pair<bfloat>(beta[h] * acc[n][2 * h], beta[h] * acc[n][2 * h + 1]);
        }
      __syncthreads();
      write_split(part, part_rest, acc, entering);
      __syncthreads();
      scale_state(state, exp_of(total));
      add_over_tokens(state, k, part, part_rest);
#pragma unroll
      for (int step = 0; step < kDeltaChunk / 16; ++step) {  // q, each row times its factor
        uint32_t a[2][4], rest[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          q.load_a_trans(a[m], step * 16, warp * 4 + 2 * m);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 value = unpack(a[m][i]),
                         factor =
                             *reinterpret_cast<const float2*>(&memory.reads[step * 16 + i / 2 * 8 + pair]);
            split(value.x * factor.x, value.y * factor.y, a[m][i], rest[m][i]);
          }
        }
#pragma unroll
        for (int n = 0; n < kDeltaColumns / 16; ++n) {
          uint32_t b[4];
          d_o.load_b_trans(b, step * 16, 2 * n);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<bfloat>(state[m][2 * n], a[m], b[0], b[1]);
            mma<bfloat>(state[m][2 * n + 1], a[m], b[2], b[3]);
            mma<bfloat>(state[m][2 * n], rest[m], b[0], b[1]);
            mma<bfloat>(state[m][2 * n + 1], rest[m], b[2], b[3]);
          }
        }
      }
      write_state(high, low, state);
    }
  }
}

// A warp per chunk and value head, two tokens a lane: the gradients of b and a, and this chunk's part of
// those of dt_bias and a_log.
__global__ void __launch_bounds__(kThreads)
    delta_gates_kernel(const __grid_constant__ DeltaChunks task,
                       const __grid_constant__ DeltaChunkGrads grads) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32,
                parts = task.slots * task.value_heads, tokens = task.sequences.tokens;
  if (at >= parts) return;
  const int64_t slot = at / task.value_heads, head = at - slot * task.value_heads;
  const ChunkSpan span = task.sequences.chunk_span(slot, kDeltaChunk);
  const int length = max(0, static_cast<int>(span.end - span.begin)), lane = threadIdx.x % 32;
  const float rate = task.rate(head);
  float own[2] = {}, z_v_new[2] = {}, beta[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (2 * lane + i < length) {
      const int64_t here = head * tokens + span.begin + 2 * lane + i;
      beta[i] = task.head_beta[here];
      own[i] = grads.passed[here];
      z_v_new[i] = grads.z_dot_v_new[here];
    }
  float later = own[0] + own[1];  // of this lane's tokens and those after them
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, later, offset);
    if (lane + offset < 32) later += other;
  }
  if (length > 0) later += grads.carried[at];
  float dbias = 0, da_log = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (2 * lane + i < length) {
      const int64_t t = span.begin + 2 * lane + i, to = t * task.value_heads + head;
      const float dlog = i ? later - own[0] : later, raw = task.raw(t, head);
      const float draw = dlog * rate * sigmoid<false>(raw);
      grads.db[to] = narrow<bfloat>(z_v_new[i] * (1.f - beta[i]));
      grads.da[to] = narrow<bfloat>(draw);
      dbias += draw;
      da_log += dlog * rate * softplus(raw);
    }
  dbias = warp_sum(dbias), da_log = warp_sum(da_log);
  if (lane == 0) {
    grads.partials[at] = dbias;
    grads.partials[parts + at] = da_log;
  }
}

void delta_carry_back(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream) {
  allow_shared_memory(delta_carry_back_kernel, sizeof(CarryBackSmem));
  dim3 grid(kDeltaChannels / kDeltaColumns, static_cast<unsigned>(task.value_heads),
            static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
  delta_carry_back_kernel<<<grid, kMmaThreads, sizeof(CarryBackSmem), stream>>>(task, grads);
  check_launch("delta_rule_backward");
}

void delta_gates(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream) {
  delta_gates_kernel<<<blocks_for(task.slots * task.value_heads, kThreads / 32), kThreads, 0, stream>>>(
      task, grads);
  check_launch("delta_rule_backward");
}

}  // namespace

void delta_chunks_backward(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream) {
  make_delta_systems(task, true, stream);
  delta_carry_back(task, grads, stream);
  delta_bwd_qk(task, grads, stream);
  delta_gates(task, grads, stream);
}

}  // namespace megatron::cuda
