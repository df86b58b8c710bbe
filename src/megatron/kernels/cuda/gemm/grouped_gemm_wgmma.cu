#include "megatron/kernels/cuda/gemm/grouped_gemm_rows.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm_wgrad.cuh"

namespace megatron::cuda {
namespace {

using namespace grouped;

template <class T>
constexpr DType kType = std::is_same_v<T, bfloat> ? DType::BF16 : DType::F16;

// wgmma m64n256k16 of 16-bit operands. Where A is not K-major, as in weight gradients, K are an expert's
// rows: there may be none, and they may end inside a stage.
template <class T, bool AKMajor, bool BKMajor>
struct Mainloop {
  struct Arguments {};
  static constexpr int kTileK = kPanel;
  static constexpr bool kAKMajor = AKMajor, kBKMajor = BKMajor;

  // Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. All consumers call it.
  static __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
    for (int panel = 0; panel < (kTileM + kTileN) / kPanel; ++panel)
      for (int i = k_size * 128 + (static_cast<int>(threadIdx.x) - 128) * 16; i < kPanelBytes;
           i += kConsumerThreads * 16)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + panel * kPanelBytes + i), "r"(0)
                     : "memory");
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<kConsumerThreads>(1);
  }

  template <class Shared, class Pipe>
  static __device__ __forceinline__ void run(const Shared& shared, Pipe& pipe, const Tile& tile, int group,
                                             const Params&, const Arguments&, float (&acc)[128]) {
    if (!AKMajor && tile.k_size == 0) {
#pragma unroll
      for (float& value : acc) value = 0;
    }
    int last = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      shared.full(pipe.stage).wait(pipe.parity);
      if (!AKMajor && tile.k_size - k < kTileK) clear_tail(shared.a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(shared.a(pipe.stage) + group * kPanelBytes),
                     b_desc = sm90::smem_desc(shared.b(pipe.stage));
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i)
        sm90::wgmma_mma<T, AKMajor, BKMajor>(acc, sm90::advance_desc<AKMajor>(a_desc, i),
                                             sm90::advance_desc<BKMajor>(b_desc, i), k || i);
      sm90::wgmma_commit();
      // The wgmma of the last stage is done; this one may run.
      if (k) {
        sm90::wgmma_wait<1>();
        shared.release(last);
      }
      last = pipe.stage;
    }
    sm90::wgmma_wait<0>();
    sm90::wgmma_waited(acc);
    if (AKMajor || tile.k_size) shared.release(last);
  }
};

}  // namespace

template <class T>
bool wgmma_grouped_gemm(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.k == 0) return false;
  const Matrices a{task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows};
  if (task.b_row == 1)
    return rows::launch<Mainloop<T, true, true>, T>(
        ctx, kType<T>, a, {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert},
        params_of(task), {});
  if (task.b_column == 1)
    return rows::launch<Mainloop<T, true, false>, T>(
        ctx, kType<T>, a, {task.b, task.n, task.k, task.experts, task.b_row, task.b_expert}, params_of(task),
        {});
  return false;
}

template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_column != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  return wgrad::launch<Mainloop<T, false, false>, Out>(
      ctx, kType<T>, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
      {task.b, task.n, task.rows, 1, task.b_row, task.b_row * task.rows}, params_of(task), {});
}

template bool wgmma_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm<half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, float>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, float>(const KernelContext&, const GroupedTask&);

}  // namespace megatron::cuda
