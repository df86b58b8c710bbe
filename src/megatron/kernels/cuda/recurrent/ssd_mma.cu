#include "megatron/kernels/cuda/recurrent/ssd_mma.cuh"
#include "megatron/kernels/cuda/recurrent/ssd_mma_tile.cuh"

namespace megatron::cuda {
namespace {

constexpr int kStepHeads = 16, kStepParts = 16;

// Steps Δ, their cumulative sums Δ A and the factors of a chunk. A block has one chunk of 16 heads: each
// thread sums a sixteenth of it, then adds what came before.
__global__ void __launch_bounds__(kStepHeads* kStepParts) scan_steps_kernel(const ScanTask task) {
  __shared__ float steps[kStepHeads][257], sums[kStepHeads][257], totals[kStepParts][kStepHeads];
  const int64_t slot = blockIdx.x, head0 = blockIdx.y * kStepHeads;
  const ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  if (length <= 0) return;
  const int own = threadIdx.x % kStepHeads, part = threadIdx.x / kStepHeads;
  const int per = task.chunk / kStepParts, first = part * per, last = min(first + per, length);
  const int64_t head = min(head0 + own, task.heads - 1);
  const float rate = task.rate(head);
  float sum = 0;
  for (int i = first; i < last; ++i) {
    const float step = min(max(softplus(task.raw_step(span.begin + i, head)), task.step_min), task.step_max);
    steps[own][i] = step;
    sums[own][i] = sum += step * rate;
  }
  totals[part][own] = sum;
  __syncthreads();
  float before = 0;
  for (int k = 0; k < part; ++k) before += totals[k][own];
  for (int i = first; i < last; ++i) sums[own][i] += before;
  __syncthreads();
  for (int h = threadIdx.x / 32; h < kStepHeads && head0 + h < task.heads;
       h += kStepParts * kStepHeads / 32) {
    const float total = sums[h][length - 1];
    for (int i = threadIdx.x % 32; i < length; i += 32) {
      const int64_t at = (head0 + h) * task.sequences.tokens + span.begin + i;
      const float sum = sums[h][i], step = steps[h][i];
      task.steps[at] = step;
      task.sums[at] = sum;
      task.grown[at] = exp_of(sum);
      task.entering[at] = step * exp_of(total - sum);
    }
    if (threadIdx.x % 32 == 0) task.decays[slot * task.heads + head0 + h] = exp_of(total);
  }
}

// State carry of one head along one sequence (mma.sync m16n8k16).
// Math: forward S ← decay · S + Σ_t entering_t · x_t ⊗ b_t; Reverse dS ← decay · dS + Σ_t grown_t · dy_t ⊗
// c_t, from the last chunk on. S is stored before each chunk (dS after it).
// Grid: (2 · heads, sequences): a block has half of a head's states. Each of four warps holds 16 channels ×
// 64 states in registers.
// Shared memory: two stages of x (or dy) and b (or c) [64 tokens, 64], their weights, the decay of the
// chunk.
// Barriers: __syncthreads before a stage is read and after. cp.async loads the next 64 tokens meanwhile.
template <bool Reverse>
__global__ void __launch_bounds__(kMmaThreads, 5)
    carry_kernel(const __grid_constant__ ScanTask task, ScanMatrix rows, float* states, float* carried) {
  constexpr int half = kScanStates / 2;
  __shared__ __align__(128) bfloat data[4 * ScanRows::kElements];
  __shared__ float weights[2][kScanTile], decays[2], sums[kMmaWarps];
  const int64_t head = blockIdx.x / 2, group = task.group_of(head);
  const int n0 = blockIdx.x % 2 * half, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int per_chunk = task.chunk / kScanTile;
  for (int64_t sequence = blockIdx.y; sequence < task.sequences.count; sequence += gridDim.y) {
    const TokenSpan span = task.sequences.span(sequence);
    const int64_t first = task.sequences.first_slot(sequence, task.chunk);
    const int stages = static_cast<int>((span.end - span.begin + kScanTile - 1) / kScanTile);
    auto fetch = [&](int k) {
      const int index = Reverse ? stages - 1 - k : k, buffer = k & 1;
      const int64_t t = span.begin + int64_t{index} * kScanTile;
      const int count = static_cast<int>(min(int64_t{kScanTile}, span.end - t));
      ScanRows x{data + buffer * 2 * ScanRows::kElements}, b{x.data + ScanRows::kElements};
      x.fill_rows(rows.rows(head, t), rows.stride, count);
      b.fill_rows((Reverse ? task.c_rows(group, t) : task.b_rows(group, t)) + n0, task.stride, count);
      const float* from = task.of_head(Reverse ? task.grown : task.entering, head, t);
      if (int i = threadIdx.x; i < kScanTile)
        cp_async_word(&weights[buffer][i], i < count ? from + i : from, i < count);
      else if (i == kScanTile)
        cp_async_word(&decays[buffer], task.decays + (first + index / per_chunk) * task.heads + head, true);
    };
    float state[half / 8][4];
    clear(state);
    if (stages > 0) fetch(0);
    cp_async_commit();
    for (int k = 0; k < stages; ++k) {
      const int index = Reverse ? stages - 1 - k : k, buffer = k & 1;
      if (k + 1 < stages) fetch(k + 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      if (Reverse ? index % per_chunk == per_chunk - 1 || k == 0 : index % per_chunk == 0) {
        const int64_t slot = first + index / per_chunk, at = task.state_at(slot, head) +
                                                             (warp * 16 + lane / 4) * kScanStates + n0 +
                                                             lane % 4 * 2;
        const float decay = decays[buffer];
        float along = 0;
#pragma unroll
        for (int n = 0; n < half / 8; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int64_t to = at + h * 8 * kScanStates + n * 8;
            float &s0 = state[n][2 * h], &s1 = state[n][2 * h + 1];
            if constexpr (Reverse) {
              const float2 before = *reinterpret_cast<const float2*>(task.before + to);
              along += before.x * s0 + before.y * s1;
            }
            *reinterpret_cast<float2*>(states + to) = {s0, s1};
            s0 *= decay;
            s1 *= decay;
          }
        if constexpr (Reverse) {
          along = warp_sum(along);
          if (lane == 0) sums[warp] = along;
          __syncthreads();
          if (threadIdx.x == 0)
            carried[(blockIdx.x % 2 * task.slots + slot) * task.heads + head] =
                (sums[0] + sums[1]) + (sums[2] + sums[3]);
        }
      }
      const ScanRows x{data + buffer * 2 * ScanRows::kElements}, b{x.data + ScanRows::kElements};
#pragma unroll
      for (int step = 0; step < kScanTile / 16; ++step) {
        uint32_t raw[4], high[4], low[4], b_frag[half / 16][4];
        x.load_a_trans(raw, step * 16, warp * 2);
#pragma unroll
        for (int n = 0; n < half / 16; ++n) b.load_b_trans(b_frag[n], step * 16, 2 * n);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 weight = *reinterpret_cast<const float2*>(
                           &weights[buffer][step * 16 + i / 2 * 8 + lane % 4 * 2]),
                       value = unpack(raw[i]);
          split(weight.x * value.x, weight.y * value.y, high[i], low[i]);
        }
#pragma unroll
        for (int n = 0; n < half / 8; ++n)
          mma<bfloat>(state[n], high, b_frag[n / 2][n % 2 * 2], b_frag[n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < half / 8; ++n)
          mma<bfloat>(state[n], low, b_frag[n / 2][n % 2 * 2], b_frag[n / 2][n % 2 * 2 + 1]);
      }
      __syncthreads();
    }
  }
}

}  // namespace

void prepare_scan(const ScanTask& task, cudaStream_t stream) {
  dim3 grid(static_cast<unsigned>(task.slots), blocks_for(task.heads, kStepHeads));
  scan_steps_kernel<<<grid, kStepHeads * kStepParts, 0, stream>>>(task);
  check_launch("ssd");
}

void carry_states(const ScanTask& task, const ScanMatrix& rows, float* states, float* carried, bool reverse,
                  cudaStream_t stream) {
  dim3 grid(static_cast<unsigned>(2 * task.heads),
            static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
  auto kernel = reverse ? carry_kernel<true> : carry_kernel<false>;
  kernel<<<grid, kMmaThreads, 0, stream>>>(task, rows, states, carried);
  check_launch("ssd");
}

void ssd_on_tensor_cores(const KernelContext& ctx, const SsdTask<bfloat>& plain, bfloat* y) {
  ScanTask task(plain);
  Scratch scratch(ctx, ScanTask::bytes(plain));
  Scratch states(ctx, (task.before ? 1 : static_cast<size_t>(task.state_elements())) * sizeof(float));
  task.use(scratch.as<float>());
  if (!task.before) task.before = states.as<float>();
  cudaStream_t stream = stream_of(ctx);
  const ScanMatrix x{task.xbc, task.stride};
  prepare_scan(task, stream);
  carry_states(task, x, task.before, nullptr, false, stream);
  launch_scan_tiles<false>(task, x, task.before, {y, nullptr}, stream);
}

}  // namespace megatron::cuda
