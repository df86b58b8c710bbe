#include "megatron/kernels/sample.h"

#include <limits>

#include "megatron/kernels/cuda/core/mma.cuh"
#include "megatron/kernels/cuda/pointwise/index.cuh"
#include "megatron/kernels/limits/grid.h"

namespace megatron::cuda {
namespace {

constexpr int kSampleThreads = 1024, kSampleWarps = kSampleThreads / 32;
constexpr int kEach = 8, kTile = kSampleThreads * kEach, kMaxTiles = 64;  // elements of a thread, and of all
constexpr int kDigitBits = 4, kBins = 1 << kDigitBits;
constexpr double kColdest = 1e-5;  // temperatures below it take the largest logit

// Numbers that are ordered as floats are; NaN is below all.
__device__ __forceinline__ uint32_t key_of(float value) {
  if (!(value == value)) return 0;
  const uint32_t bits = __float_as_uint(value + 0.f);  // one zero
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
constexpr uint32_t kNever = 0x007fffff;  // the key of −∞

// The lowest bit in which keys of a type differ, a multiple of kDigitBits.
template <class T>
inline constexpr int kLastShift = std::is_same_v<T, bfloat> ? 16
                                  : std::is_same_v<T, half> ? 12
                                                            : 0;

// A row as its block reads it: tiles of 8192 elements, eight neighbours a thread.
template <class T, bool Vectors>
struct LogitRow {
  const T* data;
  int n;

  __device__ void load(float (&values)[kEach], int first) const {
    if constexpr (Vectors) {
      const Vec<T, kEach> raw = read<kEach>(data + first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) values[i] = widen(raw.v[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        values[i] = first + i < n ? widen(data[first + i]) : -std::numeric_limits<float>::infinity();
    }
  }
  template <class F>
  __device__ void each(F&& f) const {
    for (int first = threadIdx.x * kEach; first < n; first += kTile) {
      float values[kEach];
      load(values, first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) f(values[i], first + i);
    }
  }
};

struct SampleMemory {
  double bin_sums[kBins], tiles[kMaxTiles], warps[kMaxTiles][kSampleWarps];
  Candidate<float> best[kSampleWarps];
};

// The largest key with which keys at or above it, and not below `floor`, have mass(logit) of `needed`
// together, or of `needed` times the mass of all where it is a share; the lowest key that is there where they
// have less. Digit by digit from the highest bits: each thread has bins of its own, [bin][thread] in `bins`,
// which are added up in order, so that the result is the same each time.
template <class T, class Row, class Mass>
__device__ uint32_t select(const Row& row, uint32_t floor, double needed, bool share, float* bins,
                           SampleMemory& memory, Mass mass) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t prefix = 0;
  double above = 0;  // mass of keys above those with this prefix
  for (int shift = 32 - kDigitBits; shift >= kLastShift<T>; shift -= kDigitBits) {
#pragma unroll
    for (int b = 0; b < kBins; ++b) bins[b * kSampleThreads + threadIdx.x] = 0;
    const bool first = shift == 32 - kDigitBits;
    row.each([&](float logit, int) {
      const uint32_t key = key_of(logit);
      if (key < floor || key <= kNever || (!first && key >> (shift + kDigitBits) != prefix)) return;
      bins[(key >> shift) % kBins * kSampleThreads + threadIdx.x] += mass(logit);
    });
    __syncthreads();
    if (warp < kBins) {
      double sum = 0;
      for (int i = lane; i < kSampleThreads; i += 32)
        sum += static_cast<double>(bins[warp * kSampleThreads + i]);
      sum = warp_sum(sum);
      if (lane == 0) memory.bin_sums[warp] = sum;
    }
    __syncthreads();
    if (first && share) {
      double all = 0;
      for (int b = kBins - 1; b >= 0; --b) all += memory.bin_sums[b];
      needed *= all;
    }
    int digit = -1;
    double below = above, lowest_above = above;
    int lowest = 0;  // bin that is not empty
    for (int b = kBins - 1; b >= 0 && digit < 0; --b) {
      const double own = memory.bin_sums[b];
      if (own > 0) lowest = b, lowest_above = below;
      if (own > 0 && below + own >= needed) digit = b;
      below += own;
    }
    prefix = prefix << kDigitBits | static_cast<uint32_t>(digit < 0 ? lowest : digit);
    above = lowest_above;
    __syncthreads();
  }
  return max(floor, prefix << kLastShift<T>);
}

// The first of `count` numbers with which their sum from `before` on passes `target`, or the last that is not
// zero; `before` becomes the sum in front of it.
__device__ int pass(const double* numbers, int count, double target, double& before) {
  int last = 0;
  double sum = before;
  for (int i = 0; i < count; ++i) {
    if (numbers[i] > 0) last = i, before = sum;
    sum += numbers[i];
    if (numbers[i] > 0 && target < sum) break;
  }
  return last;
}

// Draws a token of each row.
// Math: the largest logit; a floor by min-p; by top-k the k-th largest, by top-p the logit with which the
// likeliest have that share; then the token at which the sum of exp((logit − largest) / temperature), in the
// order of tokens, passes uniform times that of all.
// Grid: a block a row. Nothing is added by atomics.
// Shared memory: bins of the threads, [16, 1024] in fp32; sums of bins, tiles and warps.
template <class T, bool Vectors>
__global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const T* logits, int64_t stride, int n, const double* settings, int64_t* tokens) {
  extern __shared__ float bins[];
  __shared__ SampleMemory memory;
  griddep_overlap();
  const LogitRow<T, Vectors> row{logits + blockIdx.x * stride, n};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const double* own = settings + static_cast<int64_t>(blockIdx.x) * kSampleSettings;
  const double temperature = own[kSampleTemperature], top_p = own[kSampleTopP], min_p = own[kSampleMinP];
  const auto top_k = static_cast<int64_t>(own[kSampleTopK]);

  Candidate<float> best{0.f, -1};
  row.each([&](float logit, int index) {
    if (logit == logit && index < n && (best.index < 0 || logit > best.value)) best = {logit, index};
  });
  best = warp_best(best);
  if (lane == 0) memory.best[warp] = best;
  __syncthreads();
  best = warp_best(memory.best[lane]);
  const bool finite = best.index >= 0 && best.value - best.value == 0.f;
  if (!finite || temperature < kColdest || top_k == 1) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = finite ? best.index : -1;
    return;
  }

  const float scale = static_cast<float>(1 / temperature) * kLog2e;
  const auto weight = [&](float logit) { return exp2_fast((logit - best.value) * scale); };
  uint32_t floor = kNever + 1;
  if (min_p > 0) floor = max(floor, key_of(best.value + static_cast<float>(temperature * log(min_p))));
  if (top_k > 0 && top_k < n)
    floor = select<T>(row, floor, static_cast<double>(top_k), false, bins, memory, [](float) { return 1.f; });
  if (top_p > 0 && top_p < 1) floor = select<T>(row, floor, top_p, true, bins, memory, weight);

  const auto kept = [&](float logit) { return key_of(logit) >= floor ? weight(logit) : 0.f; };
  const int tiles = (n + kTile - 1) / kTile;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile * kTile + threadIdx.x * kEach;
    float values[kEach], sum = 0;
    if (first < n) {
      row.load(values, first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) sum += kept(values[i]);
    }
    const double all = warp_sum(static_cast<double>(sum));
    if (lane == 0) memory.warps[tile][warp] = all;
  }
  __syncthreads();
  if (threadIdx.x < tiles) {
    double sum = 0;
    for (int w = 0; w < kSampleWarps; ++w) sum += memory.warps[threadIdx.x][w];
    memory.tiles[threadIdx.x] = sum;
  }
  __syncthreads();
  if (warp > 0) return;
  double total = 0, before = 0;
  for (int tile = 0; tile < tiles; ++tile) total += memory.tiles[tile];
  const double target = own[kSampleUniform] * total;
  const int tile = pass(memory.tiles, tiles, target, before),
            part = pass(memory.warps[tile], kSampleWarps, target, before),
            first = tile * kTile + (part * 32 + lane) * kEach;
  float values[kEach], sum = 0;
  if (first < n) {
    row.load(values, first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += kept(values[i]);
  }
  double through = sum;  // of the lanes up to this one
  for (int offset = 1; offset < 32; offset *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, through, offset);
    if (lane >= offset) through += other;
  }
  const unsigned some = __ballot_sync(0xffffffffu, sum > 0),
                 passed = __ballot_sync(0xffffffffu, sum > 0 && target < before + through);
  const int chosen = passed ? __ffs(static_cast<int>(passed)) - 1 : 31 - __clz(static_cast<int>(some));
  if (lane != chosen) {
    if (lane == 0 && some == 0) tokens[blockIdx.x] = best.index;  // rounding led to where there is none
    return;
  }
  double at = before + through - sum;
  int64_t token = -1;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float mass = kept(values[i]);
    if (mass > 0 && (token < 0 || at <= target)) token = first + i;
    at += mass;
  }
  tokens[blockIdx.x] = token;
}

template <class T>
bool launch(const KernelContext& ctx, const SampleArgs& args) {
  const int64_t rows = args.logits.size(0), n = args.logits.size(1);
  constexpr size_t bytes = size_t{kBins} * kSampleThreads * sizeof(float);
  const auto run = [&](auto kernel) {
    allow_shared_memory(kernel, bytes);
    step_launch(ctx, "sample", static_cast<unsigned>(rows), kSampleThreads, bytes)
        .run(kernel, pointer<T>(args.logits), args.logits.stride(0), static_cast<int>(n),
             pointer<double>(args.settings), pointer<int64_t>(args.tokens));
  };
  if (n % kEach == 0 && args.logits.stride(0) % kEach == 0 && aligned(args.logits.raw()))
    run(sample_kernel<T, true>);
  else
    run(sample_kernel<T, false>);
  return true;
}

bool sample(const KernelContext& ctx, const SampleArgs& args) {
  const int64_t rows = args.logits.size(0), n = args.logits.size(1);
  static_assert(int64_t{kTile} * kMaxTiles == kMaxSampledTokens);
  if (rows > limits::kGridRows || n == 0 || n > kMaxSampledTokens || args.logits.stride(1) != 1) return false;
  if (rows == 0) return true;
  switch (args.logits.dtype()) {
    case DType::F32:
      return launch<float>(ctx, args);
    case DType::BF16:
      return launch<bfloat>(ctx, args);
    case DType::F16:
      return launch<half>(ctx, args);
    default:
      return false;
  }
}

}  // namespace

void add_sample_kernels(KernelTable& table) { table.sample = sample; }

}  // namespace megatron::cuda
