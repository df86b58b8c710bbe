#include "megatron/kernels/cuda/recurrent/ssd_mma_backward.cuh"
#include "megatron/kernels/cuda/recurrent/ssd_mma_tile.cuh"

namespace megatron::cuda {
namespace {

// Column sums of a warp's 16 × 64 tile; a lane gets those of columns 2 · lane and the next.
__device__ __forceinline__ float2 column_sums(const float (&value)[kScanTile / 8][4]) {
  const int lane = threadIdx.x % 32;
  float2 sum[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) sum[n] = {value[n][0] + value[n][2], value[n][1] + value[n][3]};
    // A lane keeps half of its pairs and gives the others to its partner.
#pragma unroll
  for (int half = 4; half; half /= 2) {
    const bool upper = lane & (4 * half);
#pragma unroll
    for (int n = 0; n < half; ++n) {
      const float2 given = upper ? sum[n] : sum[n + half], kept = upper ? sum[n + half] : sum[n];
      sum[n] = {kept.x + __shfl_xor_sync(0xffffffffu, given.x, 4 * half),
                kept.y + __shfl_xor_sync(0xffffffffu, given.y, 4 * half)};
    }
  }
  return sum[0];
}

// Row of tile `index` among those on and below the diagonal, counted row by row.
__device__ __forceinline__ int tile_row(int index) {
  return index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
}

// The gradient of c_i · b_j of one 64 × 64 tile, summed over the heads of a group (mma.sync m16n8k16).
// Math: reached_ij = Σ_heads Δ_j e^(s_i − s_j) (dy_i · x_j) for j ≤ i. Each head's terms times c_i · b_j,
// summed over j (out_of_rows) and, over Δ_j, summed over i (into_columns), go into the gradient of the sums.
// Grid: (slots · tiles on and below the diagonal, groups). Four warps have 16 rows i each.
// Shared memory: first c and b [64, 128], then two stages of dy and x [64, 64], with sums and steps of the
// columns.
// Barriers: __syncthreads before a head is read and after. cp.async loads the next head meanwhile.
__global__ void __launch_bounds__(kMmaThreads, 3)
    scan_reached_kernel(const __grid_constant__ ScanTask task, const __grid_constant__ ScanGrads grads) {
  __shared__ __align__(128) bfloat data[4 * ScanRows::kElements];
  __shared__ float column_parts[kMmaWarps][kScanTile];
  __shared__ float2 gates[2][kScanTile];  // sum and step of each j
  const int tiles = task.chunk / kScanTile, squares = tiles * (tiles + 1) / 2, square = blockIdx.x % squares;
  const int64_t slot = blockIdx.x / squares, group = blockIdx.y, tokens = task.sequences.tokens;
  const ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin), lane = threadIdx.x % 32,
            warp = threadIdx.x / 32;
  const int row_tile = tile_row(square), column_tile = square - row_tile * (row_tile + 1) / 2;
  const int i0 = row_tile * kScanTile, j0 = column_tile * kScanTile;
  if (i0 >= length) return;
  const int rows = min(kScanTile, length - i0), columns = min(kScanTile, length - j0);
  float cb[kScanTile / 8][4], reached[kScanTile / 8][4];
  {
    const ScanStates c{data}, b{data + ScanStates::kElements};
    c.fill_rows(task.c_rows(group, span.begin + i0), task.stride, rows);
    b.fill_rows(task.b_rows(group, span.begin + j0), task.stride, columns);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    warp_gemm_nt<bfloat, kScanStates, kScanTile>(cb, c, warp * 16, b);
    __syncthreads();
  }
  clear(reached);
  const int64_t first = group * task.share, last = first + task.share;
  auto fetch = [&](int64_t head) {
    const ScanRows dy{data + (head - first) % 2 * 2 * ScanRows::kElements}, x{dy.data + ScanRows::kElements};
    dy.fill_rows(grads.dy.rows(head, span.begin + i0), grads.dy.stride, rows);
    x.fill_rows(task.x_rows(head, span.begin + j0), task.stride, columns);
    const int j = threadIdx.x % kScanTile, from = min(j0 + j, length - 1);
    float2& gate = gates[(head - first) % 2][j];
    if (threadIdx.x < kScanTile)
      cp_async_word(&gate.x, task.of_head(task.sums, head, span.begin + from), true);
    else
      cp_async_word(&gate.y, task.of_head(task.steps, head, span.begin + from), true);
  };
  const int row = i0 + warp * 16 + lane / 4;
  fetch(first);
  cp_async_commit();
  for (int64_t head = first; head < last; ++head) {
    if (head + 1 < last) fetch(head + 1);
    cp_async_commit();
    const float* sums = task.of_head(task.sums, head, span.begin);
    const float sum[2] = {sums[min(row, length - 1)], sums[min(row + 8, length - 1)]};
    cp_async_wait<1>();
    __syncthreads();
    const ScanRows dy{data + (head - first) % 2 * 2 * ScanRows::kElements}, x{dy.data + ScanRows::kElements};
    float value[kScanTile / 8][4], along[2] = {};
    warp_gemm_nt<bfloat, kScanChannels, kScanTile>(value, dy, warp * 16, x);
#pragma unroll
    for (int n = 0; n < kScanTile / 8; ++n) {
      const float4 two = *reinterpret_cast<const float4*>(&gates[(head - first) % 2][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j0 + n * 8 + lane % 4 * 2 + i % 2, own = row + i / 2 * 8;
        if (column == own && own < length) grads.skip[head * tokens + span.begin + own] = value[n][i];
        const float there = i % 2 ? two.z : two.x, step = i % 2 ? two.w : two.y;
        value[n][i] *= column <= own ? exp2_fast((sum[i / 2] - there) * kLog2e) : 0.f;
        reached[n][i] += step * value[n][i];
        value[n][i] *= cb[n][i];
        along[i / 2] += step * value[n][i];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      along[h] += __shfl_xor_sync(0xffffffffu, along[h], 1);
      along[h] += __shfl_xor_sync(0xffffffffu, along[h], 2);
      if (lane % 4 == 0 && row + 8 * h < length)
        grads.out_of_rows[(column_tile * task.heads + head) * tokens + span.begin + row + 8 * h] = along[h];
    }
    *reinterpret_cast<float2*>(&column_parts[warp][lane * 2]) = column_sums(value);
    __syncthreads();
    if (int j = threadIdx.x; j < columns)
      grads.into_columns[(row_tile * task.heads + head) * tokens + span.begin + j0 + j] =
          (column_parts[0][j] + column_parts[1][j]) + (column_parts[2][j] + column_parts[3][j]);
  }
  bfloat* out = grads.reached + (slot * task.groups + group) * task.chunk * task.chunk;
#pragma unroll
  for (int n = 0; n < kScanTile / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<uint32_t*>(out + (row + 8 * h) * task.chunk + j0 + n * 8 + lane % 4 * 2) =
          narrow_pair<bfloat>(reached[n][2 * h], reached[n][2 * h + 1]);
}

// Prefetches a state and `count` rows of channels into the L2 cache.
__device__ __forceinline__ void prefetch_head(const float* state, const bfloat* rows, int64_t stride,
                                              int count) {
  for (int i = threadIdx.x; i < kScanChannels * kScanStates / 32; i += kMmaThreads) prefetch(state + i * 32);
  for (int i = threadIdx.x; i < count; i += kMmaThreads) prefetch(rows + i * stride);
}

// The gradient of c (OfC) or b of 64 tokens, summed over the heads of a group (mma.sync m16n8k16).
// Math: dc_i = Σ_j reached_ij b_j + Σ_heads grown_i dy_i · S; db_j = Σ_i reached_ij c_i + Σ_heads entering_j
// x_j · dS. OfC also stores c_i · (grown_i dy_i · S) of each head in `read`, for the gradient of the sums.
// Grid: (slots · tiles of 64 tokens, groups). Four warps have 16 tokens each.
// Shared memory: a state or rows of b or c [64, 128] (OfC also own rows and the state's rounding error), and
// rows [64, 64] of reached, dy or x.
// Barriers: __syncthreads around each fill by cp.async.
template <bool OfC>
__global__ void __launch_bounds__(kMmaThreads, 3)
    scan_shared_kernel(const __grid_constant__ ScanTask task, const __grid_constant__ ScanGrads grads) {
  extern __shared__ __align__(128) bfloat shared_data[];
  const ScanStates state{shared_data}, own{state.data + ScanStates::kElements},
      rest{own.data + ScanStates::kElements};
  const ScanRows rows{shared_data + (OfC ? 3 : 1) * ScanStates::kElements};
  const int tiles = task.chunk / kScanTile, tile = blockIdx.x % tiles;
  const int64_t slot = blockIdx.x / tiles, group = blockIdx.y;
  const ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin), lane = threadIdx.x % 32,
            warp = threadIdx.x / 32;
  const int row0 = tile * kScanTile, count = min(kScanTile, length - row0);
  if (count <= 0) return;
  float acc[kScanStates / 8][4];
  clear(acc);
  if constexpr (OfC) own.fill_rows(task.c_rows(group, span.begin + row0), task.stride, count);
  const bfloat* reached = grads.reached + (slot * task.groups + group) * task.chunk * task.chunk;
  for (int t = OfC ? 0 : tile; OfC ? t <= tile : t * kScanTile < length; ++t) {
    const int there = t * kScanTile, others = min(kScanTile, length - there);
    __syncthreads();
    rows.fill_rows(reached + (OfC ? row0 * task.chunk + there : there * task.chunk + row0), task.chunk,
                   kScanTile);
    state.fill_rows(OfC ? task.b_rows(group, span.begin + there) : task.c_rows(group, span.begin + there),
                    task.stride, others);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kScanTile / 16; ++step) {
      uint32_t a[4];
      if constexpr (OfC)
        rows.load_a(a, warp * 16, step);
      else
        rows.load_a_trans(a, step * 16, warp * 2);
#pragma unroll
      for (int n = 0; n < kScanStates / 16; ++n) {
        uint32_t b[4];
        state.load_b_trans(b, step * 16, 2 * n);
        mma<bfloat>(acc[2 * n], a, b[0], b[1]);
        mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  const int row = row0 + warp * 16 + lane / 4;
  for (int64_t head = group * task.share; head < (group + 1) * task.share; ++head) {
    __syncthreads();
    const ScanMatrix from = OfC ? grads.dy : ScanMatrix{task.xbc, task.stride};
    rows.fill_rows(from.rows(head, span.begin + row0), from.stride, count);
    cp_async_commit();
    fill_state<OfC>(state, rest, (OfC ? task.before : grads.after) + task.state_at(slot, head));
    const float* factors = task.of_head(OfC ? task.grown : task.entering, head, span.begin);
    const float factor[2] = {factors[min(row, length - 1)], factors[min(row + 8, length - 1)]};
    cp_async_wait<0>();
    __syncthreads();
    if (head + 1 < (group + 1) * task.share)
      prefetch_head((OfC ? task.before : grads.after) + task.state_at(slot, head + 1),
                    from.rows(head + 1, span.begin + row0), from.stride, count);
    uint32_t a[kScanChannels / 16][4];
#pragma unroll
    for (int step = 0; step < kScanChannels / 16; ++step) rows.load_a(a[step], warp * 16, step);
    float along[2] = {};
#pragma unroll
    for (int n0 = 0; n0 < kScanStates / 8; n0 += 4) {
      float part[4][4];
      clear(part);
#pragma unroll
      for (int step = 0; step < kScanChannels / 16; ++step)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          uint32_t b[4];
          state.load_b_trans(b, step * 16, n0 + 2 * n);
          mma<bfloat>(part[2 * n], a[step], b[0], b[1]);
          mma<bfloat>(part[2 * n + 1], a[step], b[2], b[3]);
          if constexpr (OfC) {
            rest.load_b_trans(b, step * 16, n0 + 2 * n);
            mma<bfloat>(part[2 * n], a[step], b[0], b[1]);
            mma<bfloat>(part[2 * n + 1], a[step], b[2], b[3]);
          }
        }
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (OfC) {
            const float2 c =
                unpack(*reinterpret_cast<const uint32_t*>(own.at(row - row0 + 8 * h, n0 + n) + lane % 4 * 2));
            along[h] += c.x * part[n][2 * h] + c.y * part[n][2 * h + 1];
          }
          acc[n0 + n][2 * h] += factor[h] * part[n][2 * h];
          acc[n0 + n][2 * h + 1] += factor[h] * part[n][2 * h + 1];
        }
    }
    if constexpr (OfC) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        along[h] += __shfl_xor_sync(0xffffffffu, along[h], 1);
        along[h] += __shfl_xor_sync(0xffffffffu, along[h], 2);
        if (lane % 4 == 0 && row + 8 * h < length)
          grads.read[head * task.sequences.tokens + span.begin + row + 8 * h] = factor[h] * along[h];
      }
    }
  }
  const int64_t width = task.heads * kScanChannels + 2 * task.groups * kScanStates;
  const int64_t column0 = task.heads * kScanChannels + (OfC ? task.groups + group : group) * kScanStates;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (row + 8 * h < length) {
      bfloat* to = grads.dxbc + (span.begin + row + 8 * h) * width + column0 + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kScanStates / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + n * 8) = narrow_pair<bfloat>(acc[n][2 * h], acc[n][2 * h + 1]);
    }
}

// A warp per chunk and head: the gradient of dt, and this chunk's part of those of a_log, d and dt_bias.
// Tokens are summed from the end of the chunk, each lane those of a stretch.
__global__ void __launch_bounds__(kThreads)
    scan_tokens_kernel(const __grid_constant__ ScanTask task, const __grid_constant__ ScanGrads grads) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32,
                parts = task.slots * task.heads;
  if (at >= parts) return;
  const int64_t slot = at / task.heads, head = at - slot * task.heads, tokens = task.sequences.tokens;
  const ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = max(0, static_cast<int>(span.end - span.begin)), lane = threadIdx.x % 32;
  const int per = task.chunk / 32, first = lane * per, last = min(first + per, length);
  const float rate = task.rate(head);
  auto of = [&](const float* values, int i) { return values[head * tokens + span.begin + i]; };
  auto in_sum = [&](int i) {  // Σ x · the gradient of Δ x
    float sum = of(grads.left, i);
    for (int t = i / kScanTile; t * kScanTile < length; ++t)
      sum += of(grads.into_columns + t * task.heads * tokens, i);
    return sum;
  };
  auto out_sum = [&](int i) {
    float sum = of(grads.read, i);
    for (int t = 0; t <= i / kScanTile; ++t) sum += of(grads.out_of_rows + t * task.heads * tokens, i);
    return sum;
  };
  float own = 0, leaving = 0;
  for (int i = last - 1; i >= first; --i) {
    own += out_sum(i) - of(task.steps, i) * in_sum(i);
    leaving += of(task.steps, i) * of(grads.left, i);
  }
  float later = own;  // of this lane and those after it
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, later, offset);
    if (lane + offset < 32) later += other;
  }
  const float carried = length > 0 ? task.decays[at] * (grads.carried[at] + grads.carried[parts + at]) : 0.f;
  later += carried + warp_sum(leaving) - own;
  float da_log = 0, dd = 0, dbias = 0;
  for (int i = last - 1; i >= first; --i) {
    const int64_t t = span.begin + i;
    const float step = of(task.steps, i), in = in_sum(i), raw = task.raw_step(t, head), soft = softplus(raw);
    later += out_sum(i) - step * in;
    const float slope = soft >= task.step_min && soft <= task.step_max ? sigmoid<false>(raw) : 0.f;
    const float draw = (rate * later + in) * slope;
    grads.ddt[t * task.heads + head] = narrow<bfloat>(draw);
    dbias += draw;
    da_log += rate * step * later;
    dd += of(grads.skip, i);
  }
  da_log = warp_sum(da_log), dd = warp_sum(dd), dbias = warp_sum(dbias);
  if (lane == 0) {
    grads.partials[at] = da_log;
    grads.partials[parts + at] = dd;
    grads.partials[2 * parts + at] = dbias;
  }
}

template <bool OfC>
void launch_shared(const ScanTask& task, const ScanGrads& grads, cudaStream_t stream) {
  constexpr size_t bytes = sizeof(bfloat) * ((OfC ? 3 : 1) * ScanStates::kElements + ScanRows::kElements);
  allow_shared_memory(scan_shared_kernel<OfC>, bytes);
  dim3 grid(static_cast<unsigned>(task.slots * (task.chunk / kScanTile)), static_cast<unsigned>(task.groups));
  scan_shared_kernel<OfC><<<grid, kMmaThreads, bytes, stream>>>(task, grads);
  check_launch("ssd_backward");
}

}  // namespace

void scan_backward(const ScanTask& task, const ScanGrads& grads, cudaStream_t stream) {
  const int tiles = task.chunk / kScanTile;
  prepare_scan(task, stream);
  carry_states(task, grads.dy, grads.after, grads.carried, true, stream);
  dim3 grid(static_cast<unsigned>(task.slots * (tiles * (tiles + 1) / 2)),
            static_cast<unsigned>(task.groups));
  scan_reached_kernel<<<grid, kMmaThreads, 0, stream>>>(task, grads);
  check_launch("ssd_backward");
  launch_scan_tiles<true>(task, grads.dy, grads.after, {grads.dxbc, grads.left}, stream);
  launch_shared<true>(task, grads, stream);
  launch_shared<false>(task, grads, stream);
  scan_tokens_kernel<<<blocks_for(task.slots * task.heads, kThreads / 32), kThreads, 0, stream>>>(task,
                                                                                                  grads);
  check_launch("ssd_backward");
}

}  // namespace megatron::cuda
