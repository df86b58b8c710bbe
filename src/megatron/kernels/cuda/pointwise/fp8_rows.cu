#include "megatron/kernels/cuda/pointwise/fp8_rows.h"

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/fp8_pages.h"

namespace megatron::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMaxEach = 8;  // elements of a head that a lane holds at most

// Rows of a pool: a head of `row` begins at data + row · row_bytes + head · head_dim.
struct Fp8Rows {
  uint8_t* data;
  int64_t row_bytes, head_stride, scales;

  explicit Fp8Rows(const Tensor& pool)
      : data(pointer<uint8_t>(pool)),
        row_bytes(pool.stride(0)),
        head_stride(pool.stride(1)),
        scales(fp8_scale_offset(pool.stride(0), pool.size(1))) {}

  // A warp writes a head, of whose elements lane l has value(e), the one at l + 32 · e.
  template <int Each, class F>
  __device__ void write(int64_t row, int64_t head, int head_dim, F&& value) const {
    const int lane = threadIdx.x % 32, each = Each > 0 ? Each : (head_dim + 31) / 32;
    float amax = 0;
#pragma unroll
    for (int e = 0; e < each; ++e) {
      const float x = lane + 32 * e < head_dim ? fabsf(value(e)) : 0.f;
      amax = x > amax || x != x ? x : amax;  // NaN stays
    }
    amax = warp_reduce(amax, [](float a, float b) { return b > a || b != b ? b : a; });
    const float inverse = amax == 0 ? 1.f : __fdiv_rn(amax, 448.f);
    uint8_t* out = data + row * row_bytes;
#pragma unroll
    for (int e = 0; e < each; ++e)
      if (lane + 32 * e < head_dim)
        out[head * head_stride + lane + 32 * e] =
            __nv_cvt_float_to_fp8(__fdiv_rn(value(e), inverse), __NV_SATFINITE, __NV_E4M3);
    if (lane == 0) reinterpret_cast<float*>(out + scales)[head] = inverse;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    put_fp8_rows_kernel(const T* source, const int64_t* ids, Fp8Rows out, int64_t count, Divisor heads,
                        int head_dim, int64_t token_stride, int64_t head_stride) {
  griddep_overlap();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= count) return;
  const int64_t i = heads.divide(static_cast<uint32_t>(item)), head = item - i * heads.value;
  const T* from = source + i * token_stride + head * head_stride;
  out.write<0>(ids[i], head, head_dim,
               [&](int e) { return static_cast<float>(widen(from[threadIdx.x % 32 + 32 * e])); });
}

template <class T>
struct Fp8QkvTask {
  const T* qkv;
  T* q;
  Fp8Rows keys, values;
  const Compute<T>*cos, *sin;
  const int64_t* slots;
  int64_t count;             // of warps: a head of a token each
  Divisor heads, per_group;  // heads of a token, and of a group: its queries, its key and its value
  int head_dim, half;
  bool interleaved;
};

// A warp takes a head of a token. Turned values are rounded to T before they are rounded to e4m3, as they are
// where other kernels stand between.
template <class T>
__global__ void __launch_bounds__(kThreads) fp8_qkv_kernel(const __grid_constant__ Fp8QkvTask<T> task) {
  griddep_overlap();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= task.count) return;
  const int lane = threadIdx.x % 32;
  const uint32_t token = task.heads.divide(static_cast<uint32_t>(item)),
                 head = static_cast<uint32_t>(item) - token * task.heads.value,
                 group = task.per_group.divide(head), member = head - group * task.per_group.value,
                 queries = task.per_group.value - 2;
  const T* from = task.qkv + item * task.head_dim;
  const bool turns = member <= queries;
  T turned[kMaxEach];
#pragma unroll
  for (int e = 0; e < kMaxEach; ++e) {
    const int c = lane + 32 * e;
    if (c >= task.head_dim) continue;
    if (!turns || c >= 2 * task.half) {
      turned[e] = from[c];
      continue;
    }
    const bool first = task.interleaved ? c % 2 == 0 : c < task.half;
    const int other = task.interleaved ? c ^ 1
                      : first          ? c + task.half
                                       : c - task.half,
              angle = task.interleaved ? c / 2
                      : first          ? c
                                       : c - task.half;
    const Compute<T> x = widen(from[c]), y = widen(from[other]),
                     cos = task.cos[static_cast<int64_t>(token) * task.half + angle],
                     sin = task.sin[static_cast<int64_t>(token) * task.half + angle];
    turned[e] = narrow<T>(first ? x * cos - y * sin : x * cos + y * sin);
  }
  if (member < queries) {
    T* to = task.q + (static_cast<int64_t>(token) * (task.heads.value / task.per_group.value * queries) +
                      group * queries + member) *
                         task.head_dim;
#pragma unroll
    for (int e = 0; e < kMaxEach; ++e)
      if (lane + 32 * e < task.head_dim) to[lane + 32 * e] = turned[e];
    return;
  }
  const Fp8Rows& pool = member == queries ? task.keys : task.values;
  pool.write<kMaxEach>(task.slots[token], group, task.head_dim,
                       [&](int e) { return static_cast<float>(widen(turned[e])); });
}

}  // namespace

void put_fp8_rows(const KernelContext& ctx, const PutRowsArgs& args) {
  const int64_t heads = args.source.size(1), count = args.ids.numel() * heads;
  dispatch_float("put_rows", args.source.dtype(), [&]<class T>(Type<T>) {
    step_launch(ctx, "put_rows", blocks_for(count, kWarps), kThreads)
        .run(put_fp8_rows_kernel<T>, pointer<const T>(args.source), pointer<const int64_t>(args.ids),
             Fp8Rows(args.out), count, Divisor(heads), static_cast<int>(args.source.size(2)),
             args.source.stride(0), args.source.stride(1));
  });
}

bool fp8_qkv_cache(const KernelContext& ctx, const QkvCacheArgs& args) {
  const int64_t groups = args.keys.size(1), head_dim = args.keys.size(2), heads = args.q.size(1) + 2 * groups,
                count = args.q.size(0) * heads;
  if (head_dim > 32 * kMaxEach || args.q.size(1) % groups != 0 || count >= int64_t{1} << 31 ||
      !args.qkv.is_contiguous() || args.keys.shape() != args.values.shape())
    return false;
  if (count == 0) return true;
  dispatch_float("qkv_split", args.qkv.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Fp8QkvTask<T> task{pointer<const T>(args.qkv),
                             pointer<T>(args.q),
                             Fp8Rows(args.keys),
                             Fp8Rows(args.values),
                             pointer<const C>(args.cos),
                             pointer<const C>(args.sin),
                             pointer<const int64_t>(args.slots),
                             count,
                             Divisor(heads),
                             Divisor(heads / groups),
                             static_cast<int>(head_dim),
                             args.cos ? static_cast<int>(args.cos.size(1)) : 0,
                             args.interleaved};
    step_launch(ctx, "qkv_split", blocks_for(count, kWarps), kThreads).run(fp8_qkv_kernel<T>, task);
  });
  return true;
}

}  // namespace megatron::cuda
