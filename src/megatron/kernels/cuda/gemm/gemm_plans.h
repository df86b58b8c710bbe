#pragma once

#include <cublasLt.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/kernels/gemm_fused.h"
#include "megatron/kernels/kernel_table.h"

namespace megatron::cuda {

void check_blas(cublasStatus_t status, const char* doing);

// A matrix as the column-major library sees it.
struct GemmMatrix {
  int64_t leading = 0, batch_stride = 0;
  int32_t transposed = 0;  // unit stride lies in the first of the two dimensions of our view
  int32_t dtype = 0;
  int64_t alignment = 0;

  friend bool operator==(const GemmMatrix&, const GemmMatrix&) = default;
};
GemmMatrix matrix_of(const char* name, const Tensor& x);

inline constexpr int32_t kBetaZero = 1, kFastAccum = 2;
inline constexpr int32_t kGelu = 64, kGeluSlope = 128;
inline constexpr int32_t kScaleVec128A = 4, kScaleBlk128x128A = 8, kScaleVec128B = 16,
                         kScaleBlk128x128B = 32;  // CUBLASLT_MATMUL_MATRIX_SCALE_*

// Everything that a plan depends on. Compared, hashed and written down as bytes, so without padding.
struct GemmKey {
  int64_t m, n, k, batch;
  GemmMatrix a, b, c;
  int32_t bias_dtype;  // −1: none
  int32_t flags;       // kBetaZero and so on
  int64_t bias_alignment;
  int64_t x_leading = 0, x_alignment = 0;  // of GELU's input, 0 without

  friend bool operator==(const GemmKey&, const GemmKey&) = default;
};
static_assert(std::has_unique_object_representations_v<GemmKey>);
GemmKey key_of(const GemmArgs& args);

struct GemmAlgo {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
  bool unfused = false;  // GEMM and a separate GELU kernel are faster
};

// GELU epilogues: c = gelu(sum) and x = sum, or c = sum · gelu'(x).
enum class Gelu { Value, Slope };

struct GemmPlan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  GemmAlgo algo;
  bool fused_bias = false;
};

// cuBLASLt's handle, and the plan of each GEMM shape. Thread-safe.
class GemmPlans {
 public:
  GemmPlans();
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  void run(const KernelContext& ctx, const GemmArgs& args);
  // With a GELU epilogue. False, and nothing done that lasts, where cuBLASLt cannot or an unfused pass is
  // faster.
  bool run(const KernelContext& ctx, const GemmArgs& args, const Tensor& x, Gelu form);

  // cuBLASLt's first proposal is the same on every run. The fastest of its proposals, timed at the first
  // GEMM of a large shape, may differ from run to run and may sum in another order. Tuned algorithms can be
  // saved and used again, which makes runs repeatable on the same GPU model.
  void autotune(AutotuneMode mode);
  std::string tuned_algos() const;
  void use(std::string_view tuned);  // ignored if of another cuBLASLt version or GPU

 private:
  struct KeyHash {
    size_t operator()(const GemmKey& key) const {
      return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
    }
  };

  struct Timed {
    GemmAlgo algo;
    float milliseconds;
  };

  // x: GELU's input, undefined without. Those above `propose` hold the lock.
  GemmPlan& plan(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args, const Tensor& x);
  GemmPlan make_plan(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args, const Tensor& x);
  std::optional<Timed> fastest(const KernelContext& ctx, const GemmKey& key, const GemmPlan& plan,
                               const std::vector<GemmAlgo>& algos, const GemmArgs& args, const Tensor& x);
  float time_unfused(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args, const Tensor& x,
                     float expected);
  std::vector<GemmAlgo> propose(const GemmKey& key, GemmPlan& plan, int most) const;
  void multiply(const KernelContext& ctx, const GemmPlan& plan, const GemmArgs& args, const Tensor& x) const;
  cublasStatus_t launch(const KernelContext& ctx, GemmPlan plan, const GemmArgs& args, const Tensor& x,
                        void* c, void* workspace) const;

  cublasLtHandle_t handle_ = nullptr;
  mutable std::mutex mutex_;
  AutotuneMode autotune_mode_ = AutotuneMode::Off;
  bool warm_ = false;  // the GPU has been kept busy before measuring
  std::unordered_map<GemmKey, GemmPlan, KeyHash> plans_;
  std::unordered_map<GemmKey, GemmAlgo, KeyHash> tuned_;
};

}  // namespace megatron::cuda
