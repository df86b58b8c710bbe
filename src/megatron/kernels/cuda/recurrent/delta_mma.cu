#include "megatron/kernels/cuda/recurrent/delta_mma.cuh"

namespace megatron::cuda {
namespace {

constexpr int kSystemRow = kDeltaChunk + 4;  // of shared memory

struct SystemSmem {
  bfloat q[DeltaRows::kElements], k[DeltaRows::kElements];
  float system[2][kDeltaChunk][kSystemRow];  // A, then T, of two value heads
  float g_cumsum[2][kDeltaChunk], beta[2][kDeltaChunk];
  float q_scale[kDeltaChunk], k_scale[kDeltaChunk];
};

// A matrix in shared memory, transposed and in two parts, as A fragments of mma.
__device__ __forceinline__ void save_transposed(const float (&matrix)[kDeltaChunk][kSystemRow], uint4* high,
                                                uint4* low) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int step = 0; step < kDeltaChunk / 16; ++step) {
    uint4 h, l;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = step * 16 + i / 2 * 8 + lane % 4 * 2, own = row + i % 2 * 8;
      split(matrix[column][own], matrix[column + 1][own], (&h.x)[i], (&l.x)[i]);
    }
    high[fragment_index(step)] = h;
    low[fragment_index(step)] = l;
  }
}

// Triangular systems of one chunk and key head (mma.sync m16n8k16).
// Math: A_ij = β_i e^(G_i − G_j) k_i · k_j (j < i), T = (1 + A)⁻¹ by forward substitution, a column a
// thread; T β and passed_ij = e^(G_i − G_j) q_i · k_j (j ≤ i) are stored as mma fragments. Transposed stores
// Tᵀ and passedᵀ too.
// Grid: (slots, key heads); the value heads of a key head, two at a time.
// Shared memory: SystemSmem: q and k [64, 128], two fp32 matrices of 64 × 68, g_cumsum, beta and scales.
// Barriers: __syncthreads between making, solving and storing a pair of systems.
template <bool Transposed>
__global__ void __launch_bounds__(kMmaThreads, 3)
    delta_systems_kernel(const __grid_constant__ DeltaChunks task) {
  extern __shared__ __align__(128) char raw_memory[];
  auto& memory = *reinterpret_cast<SystemSmem*>(raw_memory);
  const int64_t slot = blockIdx.x, key_head = blockIdx.y, tokens = task.sequences.tokens;
  const ChunkSpan span = task.sequences.chunk_span(slot, kDeltaChunk);
  const int length = static_cast<int>(span.end - span.begin), lane = threadIdx.x % 32,
            warp = threadIdx.x / 32;
  if (length <= 0) return;
  const DeltaRows q{memory.q}, k{memory.k};
  q.fill_rows(task.q_rows(key_head, span.begin), task.stride, length);
  k.fill_rows(task.k_rows(key_head, span.begin), task.stride, length);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  {
    const bool key = threadIdx.x < kDeltaChunk;
    const int row = threadIdx.x % kDeltaChunk;
    float squares = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < kDeltaChannels / 8; ++chunk) {
      const uint4 words = *reinterpret_cast<const uint4*>((key ? k : q).at(row, chunk));
      for (uint32_t word : {words.x, words.y, words.z, words.w}) {
        const float2 two = unpack(word);
        squares += two.x * two.x + two.y * two.y;
      }
    }
    const float scale = (key ? 1.f : task.query_scale) / sqrtf(squares + task.epsilon);
    (key ? memory.k_scale : memory.q_scale)[row] = scale;
    if (row < length) (key ? task.k_scale : task.q_scale)[key_head * tokens + span.begin + row] = scale;
  }
  __syncthreads();
  float keys[kDeltaChunk / 8][4], queries[kDeltaChunk / 8][4];
  warp_gemm_nt<bfloat, kDeltaChannels, kDeltaChunk>(keys, k, warp * 16, k);
  warp_gemm_nt<bfloat, kDeltaChannels, kDeltaChunk>(queries, q, warp * 16, k);
  const int row = warp * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kDeltaChunk / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float there = memory.k_scale[n * 8 + lane % 4 * 2 + i % 2];
      keys[n][i] *= memory.k_scale[row + i / 2 * 8] * there;
      queries[n][i] *= memory.q_scale[row + i / 2 * 8] * there;
    }

  for (int first = 0; first < task.share; first += 2) {
    const int pair = min(2, task.share - first);
    const int64_t head0 = key_head * task.share + first;
    __syncthreads();
    if (warp < pair) {  // two tokens a lane
      const int64_t head = head0 + warp;
      const float rate = task.rate(head);
      float gate[2], beta[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t t = span.begin + 2 * lane + i;
        const bool real = t < span.end;
        gate[i] = real ? rate * softplus(task.raw(t, head)) : 0.f;
        beta[i] = real ? sigmoid<false>(widen(task.b_in[t * task.b_stride + head])) : 0.f;
      }
      float sum = gate[0] + gate[1];
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += other;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float own = i ? sum : sum - gate[1];
        memory.g_cumsum[warp][2 * lane + i] = own;
        memory.beta[warp][2 * lane + i] = beta[i];
        if (2 * lane + i < length) {
          task.g_cumsum[head * tokens + span.begin + 2 * lane + i] = own;
          task.head_beta[head * tokens + span.begin + 2 * lane + i] = beta[i];
        }
      }
    }
    __syncthreads();
    // e^(G_i − G_j) · qk at the positions of a lane's accumulators, zero above the diagonal.
    auto weighted = [&](int p, const float(&qk)[kDeltaChunk / 8][4], int n, int h) -> float2 {
      const int column = n * 8 + lane % 4 * 2, own = row + 8 * h;
      const float sum = memory.g_cumsum[p][own];
      const float2 there = *reinterpret_cast<const float2*>(&memory.g_cumsum[p][column]);
      return {column <= own ? exp_of(sum - there.x) * qk[n][2 * h] : 0.f,
              column < own ? exp_of(sum - there.y) * qk[n][2 * h + 1] : 0.f};
    };
    auto place = [&](int p, int n, int h) -> float2& {
      return *reinterpret_cast<float2*>(&memory.system[p][row + 8 * h][n * 8 + lane % 4 * 2]);
    };
    for (int p = 0; p < pair; ++p)
#pragma unroll
      for (int step = 0; step < kDeltaChunk / 16; ++step) {
        uint4 words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * step + i / 2, h = i % 2;
          const float2 two = weighted(p, queries, n, h);
          if constexpr (Transposed)
            place(p, n, h) = two;
          else
            (&words.x)[i] = narrow_pair<bfloat>(two.x, two.y);
        }
        if constexpr (!Transposed)
          task.passed[task.matrix_at(slot, head0 + p) + fragment_index(step)] = words;
      }
    if constexpr (Transposed) {
      __syncthreads();
      for (int p = 0; p < pair; ++p)
        save_transposed(memory.system[p], task.passed_back + task.matrix_at(slot, head0 + p),
                        task.passed_back_rest + task.matrix_at(slot, head0 + p));
      __syncthreads();
    }
    for (int p = 0; p < pair; ++p)
#pragma unroll
      for (int n = 0; n < kDeltaChunk / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float2 two = weighted(p, keys, n, h);
          const int column = n * 8 + lane % 4 * 2, own = row + 8 * h;
          const float beta = memory.beta[p][own];
          place(p, n, h) = {column < own ? beta * two.x : 0.f, column + 1 < own ? beta * two.y : 0.f};
        }
    __syncthreads();
    const int p = threadIdx.x / kDeltaChunk, column = threadIdx.x % kDeltaChunk;
    float solved[kDeltaChunk];
    if (p < pair) {  // a column a thread
#pragma unroll
      for (int i = 0; i < kDeltaChunk; ++i) {
        float sum[4] = {i == column ? 1.f : 0.f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
          const float4 four = *reinterpret_cast<const float4*>(&memory.system[p][i][j]);
          sum[0] -= four.x * solved[j];
          if (j + 1 < i) sum[1] -= four.y * solved[j + 1];
          if (j + 2 < i) sum[2] -= four.z * solved[j + 2];
          if (j + 3 < i) sum[3] -= four.w * solved[j + 3];
        }
        solved[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      }
    }
    __syncthreads();
    if (p < pair) {
#pragma unroll
      for (int i = 0; i < kDeltaChunk; ++i) memory.system[p][i][column] = solved[i];
    }
    __syncthreads();
    for (int p = 0; p < pair; ++p)
#pragma unroll
      for (int step = 0; step < kDeltaChunk / 16; ++step) {
        uint4 high, low;
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float2 two = place(p, 2 * step + part, h),
                         beta = *reinterpret_cast<const float2*>(
                             &memory.beta[p][step * 16 + part * 8 + lane % 4 * 2]);
            split(two.x * beta.x, two.y * beta.y, (&high.x)[2 * part + h], (&low.x)[2 * part + h]);
          }
        const int64_t at = task.matrix_at(slot, head0 + p) + fragment_index(step);
        task.inverse[at] = high;
        task.inverse_rest[at] = low;
      }
    if constexpr (Transposed)
      for (int p = 0; p < pair; ++p)
        save_transposed(memory.system[p], task.inverse_back + task.matrix_at(slot, head0 + p),
                        task.inverse_back_rest + task.matrix_at(slot, head0 + p));
  }
}

struct CarrySmem {
  bfloat k[2][DeltaRows::kElements], q[DeltaRows::kElements];
  bfloat state[2][DeltaState::kElements];  // in two parts
  bfloat part[2][DeltaPart::kElements];    // likewise
  float g_cumsum[2][kDeltaChunk], k_scale[2][kDeltaChunk], q_scale[2][kDeltaChunk];
};

// State carry and output of one value head along one sequence (mma.sync m16n8k16).
// Math, chunk by chunk: δ = T β (v − e^G k S), o = e^G q S + passed δ, S ← e^(G_L) S + kᵀ e^(G_L − G) δ,
// with G_L at the end of the chunk.
// Grid: (2 halves of the value channels, value heads, sequences). Four warps hold 32 key channels × 64 value
// channels of S each, in registers.
// Shared memory: CarrySmem: two buffers of k, one of q, S and a [64, 64] operand each in two bf16 parts,
// g_cumsum and scales.
// Barriers: __syncthreads between steps. cp.async loads k and q of the next chunk meanwhile.
__global__ void __launch_bounds__(kMmaThreads, 2)
    delta_carry_kernel(const __grid_constant__ DeltaChunks task, bfloat* o) {
  extern __shared__ __align__(128) char raw_memory[];
  auto& memory = *reinterpret_cast<CarrySmem*>(raw_memory);
  const int64_t head = blockIdx.y, key_head = head / task.share;
  const int column0 = blockIdx.x * kDeltaColumns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp * 16 + lane / 4, pair = lane % 4 * 2;
  const DeltaRows q{memory.q};
  const DeltaState high{memory.state[0]}, low{memory.state[1]};
  const DeltaPart part{memory.part[0]}, part_rest{memory.part[1]};
  for (int64_t sequence = blockIdx.z; sequence < task.sequences.count; sequence += gridDim.z) {
    const TokenSpan span = task.sequences.span(sequence);
    const int64_t first = task.sequences.first_slot(sequence, kDeltaChunk);
    const DeltaSpan seq{span.begin, span.end};
    const int chunks = seq.chunks();
    auto fetch_q = [&](int c) {
      q.fill_rows(task.q_rows(key_head, seq.begin_of(c)), task.stride, seq.length_of(c));
    };
    float state[2][kDeltaColumns / 8][4];
    clear(state[0]);
    clear(state[1]);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * DeltaState::kElements / 8; i += kMmaThreads)
      reinterpret_cast<uint4*>(memory.state[0])[i] = {};
    if (chunks > 0) fetch_keys(memory, task, seq, head, key_head, 0), fetch_q(0);
    cp_async_commit();
    for (int c = 0; c < chunks; ++c) {
      const int64_t slot = first + c, begin = seq.begin_of(c);
      const int length = seq.length_of(c), buffer = c & 1;
      const DeltaRows k{memory.k[buffer]};
      uint4 inverse[4], inverse_rest[4], passed[4];
      load_fragment(inverse, task.inverse + task.matrix_at(slot, head));
      load_fragment(inverse_rest, task.inverse_rest + task.matrix_at(slot, head));
      uint32_t values[kDeltaColumns / 8][2];
#pragma unroll
      for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          values[n][h] = row + 8 * h < length
                             ? *reinterpret_cast<const uint32_t*>(task.v_rows(head, begin + row + 8 * h) +
                                                                  column0 + n * 8 + pair)
                             : 0u;
      if (task.before) save_state(task.state_before(slot, head) + column0, state);
      cp_async_wait<0>();
      __syncthreads();
      if (c + 1 < chunks) {
        fetch_keys(memory, task, seq, head, key_head, c + 1);
        const int64_t at = task.matrix_at(slot + 1, head);
        for (int i = threadIdx.x * 8; i < kFragmentSize; i += kMmaThreads * 8) {
          prefetch(task.inverse + at + i);
          prefetch(task.inverse_rest + at + i);
          prefetch(task.passed + at + i);
        }
        if (int i = threadIdx.x; i < seq.length_of(c + 1))
          prefetch(task.v_rows(head, seq.begin_of(c + 1) + i) + column0);
      }
      cp_async_commit();
      const float* g_cumsum = memory.g_cumsum[buffer];
      const float total = g_cumsum[length - 1];
      float grown[2], leaving[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        grown[h] = exp_of(g_cumsum[row + 8 * h]);
        leaving[h] = exp_of(total - g_cumsum[row + 8 * h]) * memory.k_scale[buffer][row + 8 * h];
      }
      float along[kDeltaColumns / 8][4], out[kDeltaColumns / 8][4];
      clear(along);
      clear(out);
      add_over_keys<true>(along, k, high, low, out, q);
#pragma unroll
      for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float factor = grown[h] * memory.k_scale[buffer][row + 8 * h],
                      read = grown[h] * memory.q_scale[buffer][row + 8 * h];
          const float2 value = unpack(values[n][h]);
          out[n][2 * h] *= read;
          out[n][2 * h + 1] *= read;
          along[n][2 * h] = value.x - factor * along[n][2 * h];
          along[n][2 * h + 1] = value.y - factor * along[n][2 * h + 1];
        }
      constexpr float whole[2] = {1, 1};
      write_split(part, part_rest, along, whole);
      __syncthreads();
      if (c + 1 < chunks) fetch_q(c + 1);
      cp_async_commit();
      clear(along);
      add_triangle<false>(along, inverse, part);
      add_triangle<false>(along, inverse, part_rest);
      add_triangle<false>(along, inverse_rest, part);
      load_fragment(passed, task.passed + task.matrix_at(slot, head));
      __syncthreads();
      write_split(part, part_rest, along, whole);
      __syncthreads();
      add_triangle<false>(out, passed, part);
      add_triangle<false>(out, passed, part_rest);
      __syncthreads();
      write_split(part, part_rest, along, leaving);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (row + 8 * h < length) {
          bfloat* to =
              o + ((begin + row + 8 * h) * task.value_heads + head) * kDeltaChannels + column0 + pair;
#pragma unroll
          for (int n = 0; n < kDeltaColumns / 8; ++n)
            *reinterpret_cast<uint32_t*>(to + n * 8) = narrow_pair<bfloat>(out[n][2 * h], out[n][2 * h + 1]);
        }
      scale_state(state, exp_of(total));
      __syncthreads();
      add_over_tokens(state, k, part, part_rest);
      write_state(high, low, state);
    }
  }
}

void carry_delta_states(const DeltaChunks& task, bfloat* o, cudaStream_t stream) {
  allow_shared_memory(delta_carry_kernel, sizeof(CarrySmem));
  dim3 grid(kDeltaChannels / kDeltaColumns, static_cast<unsigned>(task.value_heads),
            static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
  delta_carry_kernel<<<grid, kMmaThreads, sizeof(CarrySmem), stream>>>(task, o);
  check_launch("delta_rule");
}

}  // namespace

void make_delta_systems(const DeltaChunks& task, bool transposed, cudaStream_t stream) {
  auto kernel = transposed ? delta_systems_kernel<true> : delta_systems_kernel<false>;
  allow_shared_memory(kernel, sizeof(SystemSmem));
  dim3 grid(static_cast<unsigned>(task.slots), static_cast<unsigned>(task.key_heads));
  kernel<<<grid, kMmaThreads, sizeof(SystemSmem), stream>>>(task);
  check_launch("delta_rule");
}

void delta_rule_on_tensor_cores(const KernelContext& ctx, const DeltaTask<bfloat>& plain, bfloat* o) {
  DeltaChunks task(plain);
  Scratch scratch(ctx, task.bytes(false));
  task.use_chunks(scratch.as<char>(), false);
  cudaStream_t stream = stream_of(ctx);
  make_delta_systems(task, false, stream);
  carry_delta_states(task, o, stream);
}

}  // namespace megatron::cuda
