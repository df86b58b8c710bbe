#include "megatron/kernels/cuda/recurrent/delta_mma_backward.cuh"

namespace megatron::cuda {
namespace {

constexpr int kKeyThreads = 512, kKeyGroups = kKeyThreads / 128;
constexpr int kGroupChannels = kDeltaChannels / kKeyGroups;  // key channels of a group of four warps
using DeltaSquare = MmaTile<bfloat, kDeltaChunk, kDeltaChunk>;
using WholeState = MmaTile<bfloat, kDeltaChannels, kDeltaChannels>;
using KeyParts = float[kGroupChannels / 8][4];  // of 16 tokens

struct BwdQkSmem {
  bfloat q[DeltaRows::kElements], k[DeltaRows::kElements], d_o[DeltaRows::kElements];
  union {
    bfloat part[2][DeltaRows::kElements];  // the right-hand side of the systems, in two parts
    bfloat square[2][DeltaSquare::kElements];
  };
  bfloat state[2][WholeState::kElements];  // in two parts
  uint4 z[kWideFragmentSize], z_rest[kWideFragmentSize], v_new[kWideFragmentSize],
      v_new_rest[kWideFragmentSize];
  float g_cumsum[kDeltaChunk], beta[kDeltaChunk], q_scale[kDeltaChunk], k_scale[kDeltaChunk];
  float rows[kKeyGroups][kDeltaChunk], z_v_new_rows[kKeyGroups][kDeltaChunk], columns[2][4][kDeltaChunk],
      along[2][kKeyGroups][kDeltaChunk];
};

__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], const uint4* matrix, int step, int rows) {
  const uint4 words = matrix[wide_fragment_index(step, rows)];
  a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
}

// Loads a state from device memory as bf16 and its rounding error. With `other`, returns this thread's part
// of Σ state · other.
__device__ __forceinline__ float fill_whole(const WholeState& high, const WholeState& low, const float* state,
                                            const float* other) {
  float along = 0;
#pragma unroll
  for (int i = threadIdx.x; i < kDeltaChannels * kDeltaChannels / 8; i += kKeyThreads) {
    const float4 first = *reinterpret_cast<const float4*>(state + i * 8),
                 second = *reinterpret_cast<const float4*>(state + i * 8 + 4);
    uint4 h, l;
    split(first, second, h, l);
    const int row = i / (kDeltaChannels / 8), chunk = i % (kDeltaChannels / 8);
    *reinterpret_cast<uint4*>(high.at(row, chunk)) = h;
    *reinterpret_cast<uint4*>(low.at(row, chunk)) = l;
    if (other) {
      const float4 one = *reinterpret_cast<const float4*>(other + i * 8),
                   two = *reinterpret_cast<const float4*>(other + i * 8 + 4);
      along += ((one.x * first.x + one.y * first.y) + (one.z * first.z + one.w * first.w)) +
               ((two.x * second.x + two.y * second.y) + (two.z * second.z + two.w * second.w));
    }
  }
  return along;
}

// The gradients of q and k of one chunk and key head, summed over its value heads (mma.sync m16n8k16).
// Math: δ (v_new) again as in forward; with M = e^(G_i − G_j) do_i · δ_j for j ≤ i and N = −β_i e^(G_i −
// G_j) z_i · δ_j for j < i: dq = M k + e^G do Sᵀ; dk = Mᵀ q + (N + Nᵀ) k − e^G β z Sᵀ + e^(G_L − G) δ dSᵀ.
// Grid: slots · key heads. 16 warps in 4 groups: even groups make M (outputs), odd ones N (systems); then
// each group gathers 32 key channels. dq and dk are of the unit vectors until the end.
// Shared memory: BwdQkSmem: q, k, do [64, 128], the right-hand side of the systems or M and N, a state in
// two bf16 parts, z and v_new as fragments in two parts, partial sums.
// Barriers: __syncthreads between steps; one value head at a time.
__global__ void __launch_bounds__(kKeyThreads, 1)
    delta_bwd_qk_kernel(const __grid_constant__ DeltaChunks task,
                        const __grid_constant__ DeltaChunkGrads grads) {
  extern __shared__ __align__(128) char raw_memory[];
  auto& memory = *reinterpret_cast<BwdQkSmem*>(raw_memory);
  const int64_t slot = blockIdx.x / task.key_heads, key_head = blockIdx.x - slot * task.key_heads,
                tokens = task.sequences.tokens;
  const ChunkSpan span = task.sequences.chunk_span(slot, kDeltaChunk);
  const int length = static_cast<int>(span.end - span.begin);
  if (length <= 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const int row = warp * 16 + lane / 4, pair = lane % 4 * 2, channel0 = group * kGroupChannels;
  const DeltaRows q{memory.q}, k{memory.k}, d_o{memory.d_o};
  const WholeState high{memory.state[0]}, low{memory.state[1]};
  const DeltaRows rhs{memory.part[0]}, rhs_rest{memory.part[1]};
  const DeltaSquare outputs{memory.square[0]}, systems{memory.square[1]};
  q.fill_rows<kKeyThreads>(task.q_rows(key_head, span.begin), task.stride, length);
  k.fill_rows<kKeyThreads>(task.k_rows(key_head, span.begin), task.stride, length);
  if (int i = threadIdx.x; i < 2 * kDeltaChunk) {
    const int64_t from = key_head * tokens + span.begin + min(i % kDeltaChunk, length - 1);
    (i < kDeltaChunk ? memory.q_scale : memory.k_scale)[i % kDeltaChunk] =
        (i < kDeltaChunk ? task.q_scale : task.k_scale)[from];
  }
  KeyParts dq, dk;
  clear(dq);
  clear(dk);
  auto elements = [&](const DeltaRows& of, int h, int n) {  // at the positions of dq[n], dk[n]
    return unpack(*reinterpret_cast<const uint32_t*>(of.at(row + 8 * h, channel0 / 8 + n) + pair));
  };
  // to += factor · part; along += their dot products with the vectors.
  auto gather = [&](KeyParts& to, const KeyParts& part, const float(&factor)[2], const DeltaRows& vectors,
                    float(&along)[2]) {
#pragma unroll
    for (int n = 0; n < kGroupChannels / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 own = elements(vectors, h, n);
        const float x0 = factor[h] * part[n][2 * h], x1 = factor[h] * part[n][2 * h + 1];
        along[h] += x0 * own.x + x1 * own.y;
        to[n][2 * h] += x0;
        to[n][2 * h + 1] += x1;
      }
  };

  for (int64_t head = key_head * task.share; head < (key_head + 1) * task.share; ++head) {
    const int64_t wide = (slot * task.value_heads + head) * kWideFragmentSize;
    const int64_t states = (slot * task.value_heads + head) * kDeltaChannels * kDeltaChannels;
    __syncthreads();
    d_o.fill_rows<kKeyThreads>(grads.d_o_rows(head, span.begin), grads.d_o_stride, length);
    for (int i = threadIdx.x; i < kWideFragmentSize; i += kKeyThreads) {
      cp_async(memory.z + i, grads.z + wide + i, true);
      cp_async(memory.z_rest + i, grads.z_rest + wide + i, true);
    }
    cp_async_commit();
    if (int i = threadIdx.x; i < 2 * kDeltaChunk) {
      const int64_t from = head * tokens + span.begin + min(i % kDeltaChunk, length - 1);
      (i < kDeltaChunk ? memory.g_cumsum : memory.beta)[i % kDeltaChunk] =
          (i < kDeltaChunk ? task.g_cumsum : task.head_beta)[from];
    }
    uint32_t values[kGroupChannels / 8][2];
#pragma unroll
    for (int n = 0; n < kGroupChannels / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        values[n][h] = row + 8 * h < length
                           ? *reinterpret_cast<const uint32_t*>(task.v_rows(head, span.begin + row + 8 * h) +
                                                                channel0 + n * 8 + pair)
                           : 0u;
    fill_whole(high, low, task.before + states, nullptr);
    for (int i = threadIdx.x * 32; i < kDeltaChannels * kDeltaChannels; i += kKeyThreads * 32)
      prefetch(grads.after + states + i);
    cp_async_wait<0>();
    __syncthreads();
    float beta[2], sum[2], q_scale[2], k_scale[2], out[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      beta[h] = memory.beta[row + 8 * h], sum[h] = memory.g_cumsum[row + 8 * h];
      q_scale[h] = memory.q_scale[row + 8 * h], k_scale[h] = memory.k_scale[row + 8 * h];
    }
    float z_v_new[2] = {};
    {  // v_new again; here a group has 32 value channels.
      KeyParts acc;
      clear(acc);
#pragma unroll
      for (int step = 0; step < kDeltaChannels / 16; ++step) {
        uint32_t a[4], b[4];
        k.load_a(a, warp * 16, step);
#pragma unroll
        for (int n = 0; n < kGroupChannels / 16; ++n)
#pragma unroll
          for (int which = 0; which < 2; ++which) {
            (which ? low : high).load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
            mma<bfloat>(acc[2 * n], a, b[0], b[1]);
            mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
          }
      }
#pragma unroll
      for (int n = 0; n < kGroupChannels / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float factor = exp_of(sum[h]) * k_scale[h];
          const float2 value = unpack(values[n][h]);
          split(value.x - factor * acc[n][2 * h], value.y - factor * acc[n][2 * h + 1],
                *reinterpret_cast<uint32_t*>(rhs.at(row + 8 * h, channel0 / 8 + n) + pair),
                *reinterpret_cast<uint32_t*>(rhs_rest.at(row + 8 * h, channel0 / 8 + n) + pair));
        }
      __syncthreads();
      clear(acc);
#pragma unroll
      for (int step = 0; step < kDeltaChunk / 16; ++step)
        if (step <= warp) {
          const int64_t at = task.matrix_at(slot, head) + (warp * 4 + step) * 32 + lane;
          const uint4 inverse = task.inverse[at], rest = task.inverse_rest[at];
          const uint32_t a[4] = {inverse.x, inverse.y, inverse.z, inverse.w},
                         a_rest[4] = {rest.x, rest.y, rest.z, rest.w};
#pragma unroll
          for (int n = 0; n < kGroupChannels / 16; ++n) {
            uint32_t b[4];
            rhs.load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
            mma<bfloat>(acc[2 * n], a, b[0], b[1]);
            mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
            mma<bfloat>(acc[2 * n], a_rest, b[0], b[1]);
            mma<bfloat>(acc[2 * n + 1], a_rest, b[2], b[3]);
            rhs_rest.load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
            mma<bfloat>(acc[2 * n], a, b[0], b[1]);
            mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
          }
        }
#pragma unroll
      for (int step = 0; step < kGroupChannels / 16; ++step) {
        uint4 large, small;
        uint32_t z[4], z_rest[4];
        load_fragment(z, memory.z, channel0 / 16 + step, warp);
        load_fragment(z_rest, memory.z_rest, channel0 / 16 + step, warp);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float first = acc[2 * step + i / 2][i % 2 * 2], second = acc[2 * step + i / 2][i % 2 * 2 + 1];
          const float2 one = unpack(z[i]), other = unpack(z_rest[i]);
          z_v_new[i % 2] += (one.x + other.x) * first + (one.y + other.y) * second;
          split(first, second, (&large.x)[i], (&small.x)[i]);
        }
        memory.v_new[wide_fragment_index(channel0 / 16 + step, warp)] = large;
        memory.v_new_rest[wide_fragment_index(channel0 / 16 + step, warp)] = small;
      }
      __syncthreads();
    }
    const bool of_outputs = group % 2 == 0;
#pragma unroll
    for (int step16 = 0; step16 < 2; ++step16) {  // columns, 16 at a time
      const int block = group / 2 * 2 + step16;
      float value[2][4], qk[2][4];
      clear(value);
      clear(qk);
      if (block <= warp) {
#pragma unroll
        for (int step = 0; step < kDeltaChannels / 16; ++step) {
          uint32_t a[4], b[4];
          if (of_outputs)
            d_o.load_a(a, warp * 16, step);
          else
            load_fragment(a, memory.z, step, warp);
          load_fragment(b, memory.v_new, step, block);
          mma<bfloat>(value[0], a, b[0], b[2]);
          mma<bfloat>(value[1], a, b[1], b[3]);
          if (!of_outputs) {
            uint32_t rest[4];
            load_fragment(rest, memory.z_rest, step, warp);
            mma<bfloat>(value[0], rest, b[0], b[2]);
            mma<bfloat>(value[1], rest, b[1], b[3]);
          }
          load_fragment(b, memory.v_new_rest, step, block);
          mma<bfloat>(value[0], a, b[0], b[2]);
          mma<bfloat>(value[1], a, b[1], b[3]);
          (of_outputs ? q : k).load_a(a, warp * 16, step);
          k.load_b(b, block * 16, step);
          mma<bfloat>(qk[0], a, b[0], b[1]);
          mma<bfloat>(qk[1], a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = block * 16 + n * 8 + pair;
        float into[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int own = row + 8 * h;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const bool below = of_outputs ? column + i <= own : column + i < own;
            const float there = memory.k_scale[column + i],
                        passed = below ? exp_of(sum[h] - memory.g_cumsum[column + i]) : 0.f;
            float& entry = value[n][2 * h + i];
            entry *= passed * there * (of_outputs ? q_scale[h] : -beta[h] * k_scale[h]);
            const float flow = column + i < own ? entry * qk[n][2 * h + i] : 0.f;
            out[h] += flow;
            into[i] += flow;
          }
          *reinterpret_cast<uint32_t*>((of_outputs ? outputs : systems).at(own, block * 2 + n) + pair) =
              narrow_pair<bfloat>(value[n][2 * h], value[n][2 * h + 1]);
        }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          into[0] += __shfl_xor_sync(0xffffffffu, into[0], offset);
          into[1] += __shfl_xor_sync(0xffffffffu, into[1], offset);
        }
        if (lane < 4)
          *reinterpret_cast<float2*>(&memory.columns[of_outputs][warp][column]) = {into[0], into[1]};
      }
    }
    const float total = memory.g_cumsum[length - 1];
    float read[2], entering[2], leaving[2], left_behind[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      read[h] = exp_of(sum[h]) * q_scale[h];
      entering[h] = -exp_of(sum[h]) * k_scale[h] * beta[h];
      leaving[h] = exp_of(total - sum[h]) * k_scale[h];
    }
    KeyParts part, other;
    clear(part);
    clear(other);
#pragma unroll
    for (int step = 0; step < kDeltaChannels / 16; ++step) {  // out of the state before
      uint32_t a[4], z[4], z_rest[4];
      d_o.load_a(a, warp * 16, step);
      load_fragment(z, memory.z, step, warp);
      load_fragment(z_rest, memory.z_rest, step, warp);
#pragma unroll
      for (int n = 0; n < kGroupChannels / 16; ++n) {
        uint32_t b[4], rest[4];
        high.load_b(b, channel0 + n * 16, step);
        low.load_b(rest, channel0 + n * 16, step);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<bfloat>(part[2 * n + m], a, b[2 * m], b[2 * m + 1]);
          mma<bfloat>(other[2 * n + m], z, b[2 * m], b[2 * m + 1]);
          mma<bfloat>(part[2 * n + m], a, rest[2 * m], rest[2 * m + 1]);
          mma<bfloat>(other[2 * n + m], z_rest, b[2 * m], b[2 * m + 1]);
          mma<bfloat>(other[2 * n + m], z, rest[2 * m], rest[2 * m + 1]);
        }
      }
    }
    gather(dq, part, read, q, out);
    gather(dk, other, entering, k, out);
    __syncthreads();
    float carried = exp_of(total) * fill_whole(high, low, grads.after + states, task.before + states);
#pragma unroll
    for (int step = 0; step < kDeltaChunk / 16; ++step) {  // inside the chunk
      uint32_t a[4], b[4], c[4];
      if (step <= warp) {
        outputs.load_a(a, warp * 16, step);
        systems.load_a(c, warp * 16, step);
#pragma unroll
        for (int n = 0; n < kGroupChannels / 16; ++n) {
          k.load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
          mma<bfloat>(dq[2 * n], a, b[0], b[1]);
          mma<bfloat>(dq[2 * n + 1], a, b[2], b[3]);
          mma<bfloat>(dk[2 * n], c, b[0], b[1]);
          mma<bfloat>(dk[2 * n + 1], c, b[2], b[3]);
        }
      }
      if (step >= warp) {
        outputs.load_a_trans(a, step * 16, warp * 2);
        systems.load_a_trans(c, step * 16, warp * 2);
#pragma unroll
        for (int n = 0; n < kGroupChannels / 16; ++n) {
          q.load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
          mma<bfloat>(dk[2 * n], a, b[0], b[1]);
          mma<bfloat>(dk[2 * n + 1], a, b[2], b[3]);
          k.load_b_trans(b, step * 16, channel0 / 8 + 2 * n);
          mma<bfloat>(dk[2 * n], c, b[0], b[1]);
          mma<bfloat>(dk[2 * n + 1], c, b[2], b[3]);
        }
      }
    }
    __syncthreads();
    clear(part);
#pragma unroll
    for (int step = 0; step < kDeltaChannels / 16; ++step) {  // into the state after
      uint32_t a[4], a_rest[4];
      load_fragment(a, memory.v_new, step, warp);
      load_fragment(a_rest, memory.v_new_rest, step, warp);
#pragma unroll
      for (int n = 0; n < kGroupChannels / 16; ++n) {
        uint32_t b[4], rest[4];
        high.load_b(b, channel0 + n * 16, step);
        low.load_b(rest, channel0 + n * 16, step);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<bfloat>(part[2 * n + m], a, b[2 * m], b[2 * m + 1]);
          mma<bfloat>(part[2 * n + m], a, rest[2 * m], rest[2 * m + 1]);
          mma<bfloat>(part[2 * n + m], a_rest, b[2 * m], b[2 * m + 1]);
        }
      }
    }
    gather(dk, part, leaving, k, left_behind);
    carried = block_sum(carried + (left_behind[0] + left_behind[1]));
    if (threadIdx.x == 0) grads.carried[slot * task.value_heads + head] = carried;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out[h] -= left_behind[h];
      out[h] += __shfl_xor_sync(0xffffffffu, out[h], 1);
      out[h] += __shfl_xor_sync(0xffffffffu, out[h], 2);
      z_v_new[h] += __shfl_xor_sync(0xffffffffu, z_v_new[h], 1);
      z_v_new[h] += __shfl_xor_sync(0xffffffffu, z_v_new[h], 2);
      if (lane % 4 == 0) memory.rows[group][row + 8 * h] = out[h];
      if (lane % 4 == 0) memory.z_v_new_rows[group][row + 8 * h] = z_v_new[h];
    }
    __syncthreads();
    if (int i = threadIdx.x; i < length) {
      float passed = 0, z_dot_v_new = 0;
      for (int g = 0; g < kKeyGroups; ++g)
        passed += memory.rows[g][i], z_dot_v_new += memory.z_v_new_rows[g][i];
      for (int w = 0; w < 4; ++w) passed -= memory.columns[0][w][i] + memory.columns[1][w][i];
      grads.passed[head * tokens + span.begin + i] = passed;
      grads.z_dot_v_new[head * tokens + span.begin + i] = z_dot_v_new;
    }
  }

  // From the gradients of unit vectors to those of the vectors.
  auto finish = [&](const KeyParts& grad, const DeltaRows& vectors, bool key) {
    float along[2] = {};
#pragma unroll
    for (int n = 0; n < kGroupChannels / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 own = elements(vectors, h, n);
        along[h] += grad[n][2 * h] * own.x + grad[n][2 * h + 1] * own.y;
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      along[h] += __shfl_xor_sync(0xffffffffu, along[h], 1);
      along[h] += __shfl_xor_sync(0xffffffffu, along[h], 2);
      if (lane % 4 == 0) memory.along[key][group][row + 8 * h] = along[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = row + 8 * h;
      if (own >= length) continue;
      const float inverse = key ? memory.k_scale[own] : memory.q_scale[own] / task.query_scale;
      const auto& parts = memory.along[key];
      const float factor =
          ((parts[0][own] + parts[1][own]) + (parts[2][own] + parts[3][own])) * inverse * inverse;
      bfloat* to = grads.dqkv + (span.begin + own) * task.width +
                   ((key ? task.key_heads : 0) + key_head) * kDeltaChannels + channel0 + pair;
#pragma unroll
      for (int n = 0; n < kGroupChannels / 8; ++n) {
        const float2 vector = elements(vectors, h, n);
        *reinterpret_cast<uint32_t*>(to + n * 8) =
            narrow_pair<bfloat>(grad[n][2 * h] - factor * vector.x, grad[n][2 * h + 1] - factor * vector.y);
      }
    }
  };
  finish(dq, q, false);
  finish(dk, k, true);
}

}  // namespace

size_t delta_bwd_qk_smem() { return sizeof(BwdQkSmem); }

void delta_bwd_qk(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream) {
  allow_shared_memory(delta_bwd_qk_kernel, sizeof(BwdQkSmem));
  const int64_t blocks = task.slots * task.key_heads;
  delta_bwd_qk_kernel<<<static_cast<unsigned>(blocks), kKeyThreads, sizeof(BwdQkSmem), stream>>>(task, grads);
  check_launch("delta_rule_backward");
}

}  // namespace megatron::cuda
