#include "megatron/kernels/cuda/gemm/gemm_plans.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>

#include "megatron/device/cuda/cuda_runtime_impl.h"
#include "megatron/kernels/cuda/gemm/gemm.h"

namespace megatron::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return CUDA_R_64F;
    case DType::F32:
      return CUDA_R_32F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    case DType::F8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::F8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      fail("gemm: {} is not supported by the CUDA kernel; use fp32, bf16, fp16, fp8 or fp64", dtype);
  }
}

int64_t alignment_of(const void* data) {
  auto address = reinterpret_cast<uintptr_t>(data);
  return std::min<int64_t>(256, static_cast<int64_t>(address & (~address + 1)));
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a GEMM");
}

template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check_blas(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
             "describing a matrix");
}

// Our row-major [rows, columns] is the library's column-major [columns, rows].
void set_layout(cublasLtMatrixLayoutOpaque_t* layout, const GemmMatrix& m, int64_t rows, int64_t columns,
                int64_t batch) {
  auto type = cuda_type(static_cast<DType>(m.dtype));
  uint64_t high = static_cast<uint64_t>(m.transposed ? rows : columns);
  uint64_t wide = static_cast<uint64_t>(m.transposed ? columns : rows);
  check_blas(cublasLtMatrixLayoutInit(layout, type, high, wide, m.leading), "describing a matrix");
  if (batch > 1) {
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.batch_stride);
  }
}

// Our b is the library's first operand.
void set_scales(GemmPlan& plan, const GemmArgs& args) {
  if (!args.a_scale) return;
  set(&plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(args.b_scale.raw()));
  set(&plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(args.a_scale.raw()));
}

cublasLtEpilogue_t epilogue_of(const GemmKey& key, bool fused_bias) {
  if (key.flags & kGeluSlope) return CUBLASLT_EPILOGUE_DGELU;
  if (key.flags & kGelu) return fused_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return fused_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// cᵀ = bᵀ · aᵀ, since the library's matrices are column-major: b comes first.
GemmPlan describe(const GemmKey& key, bool fused_bias) {
  GemmPlan plan;
  bool wide = key.c.dtype == static_cast<int32_t>(DType::F64);
  check_blas(cublasLtMatmulDescInit(&plan.operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                    wide ? CUDA_R_64F : CUDA_R_32F),
             "describing a GEMM");
  set(&plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, key.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, key.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key, fused_bias));
  if (fused_bias)
    set(&plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(static_cast<DType>(key.bias_dtype)));
  if (key.x_leading) set(&plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.x_leading);
  auto scale_mode = [&](cublasLtMatmulDescAttributes_t attribute, int32_t vec128, int32_t blk128x128) {
    if (key.flags & vec128) set(&plan.operation, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    if (key.flags & blk128x128) set(&plan.operation, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
  };
  scale_mode(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kScaleVec128B, kScaleBlk128x128B);
  scale_mode(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kScaleVec128A, kScaleBlk128x128A);
  if (key.flags & kFastAccum) set(&plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  set_layout(&plan.b, key.b, key.k, key.n, key.batch);
  set_layout(&plan.a, key.a, key.m, key.k, key.batch);
  set_layout(&plan.c, key.c, key.m, key.n, key.batch);
  plan.fused_bias = fused_bias;
  return plan;
}

// Scratch memory for one call; see launch.cuh, which only nvcc can read.
class Workspace {
 public:
  Workspace(const KernelContext& ctx, size_t bytes)
      : allocator_(ctx.workspace), bytes_(bytes), data_(allocator_.allocate(bytes, MemoryTag::Workspace)) {}
  ~Workspace() { allocator_.deallocate(data_, bytes_, MemoryTag::Workspace); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  Allocator& allocator_;
  size_t bytes_;
  void* data_;
};

template <class T>
std::string hexadecimal(const T& value) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  std::string text;
  for (size_t i = 0; i < sizeof value; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

template <class T>
bool from_hexadecimal(std::string_view text, T& value) {
  if (text.size() != 2 * sizeof value) return false;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  auto digit = [](char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; };
  auto* bytes = reinterpret_cast<unsigned char*>(&value);
  for (size_t i = 0; i < sizeof value; ++i)
    bytes[i] = static_cast<unsigned char>(digit(text[2 * i]) * 16 + digit(text[2 * i + 1]));
  return true;
}

// Tuned algorithms hold for this version of the file, of cuBLASLt, and this GPU.
std::string tuned_algos_header() {
  int device = 0;
  cudaDeviceProp properties{};
  check_cuda(cudaGetDevice(&device), "asking for the GPU");
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking for the GPU");
  return fmt::format("gemm autotune v2, cuBLASLt {}, {}", cublasLtGetVersion(), properties.name);
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

// Milliseconds of work on a stream; infinity where some of it cannot be done.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    for (auto& event : events_) check_cuda(cudaEventCreate(&event), "creating an event");
  }
  ~Stopwatch() {
    for (auto event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class F>
  float time(int count, F&& work) {
    float milliseconds = 0;
    check_cuda(cudaEventRecord(events_[0], stream_), "timing a GEMM");
    for (int i = 0; i < count; ++i)
      if (!work()) return kNever;
    check_cuda(cudaEventRecord(events_[1], stream_), "timing a GEMM");
    check_cuda(cudaEventSynchronize(events_[1]), "timing a GEMM");
    check_cuda(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "timing a GEMM");
    return milliseconds;
  }
  static constexpr float kNever = std::numeric_limits<float>::infinity();

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2];
};

// Milliseconds until the GPU's clock settles. MEGATRON_AUTOTUNE_MS shortens the search where many shapes are
// tried once, as by `autotune profile-ops --grid`.
float settling_milliseconds() {
  const char* given = std::getenv("MEGATRON_AUTOTUNE_MS");
  const float value = given ? std::strtof(given, nullptr) : 0;
  return value > 0 ? value : 40;
}

// Repetitions of a run of this many milliseconds until the GPU's clock settles.
int long_run(float milliseconds) {
  static const float settling = settling_milliseconds();
  return std::max(2, static_cast<int>(settling / milliseconds));
}

}  // namespace

void check_blas(cublasStatus_t status, const char* doing) {
  require(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed: {} ({})", doing,
          cublasLtGetStatusString(status), cublasLtGetStatusName(status));
}

GemmMatrix matrix_of(const char* name, const Tensor& x) {
  int64_t rows = x.size(-2), columns = x.size(-1), row_stride = x.stride(-2), column_stride = x.stride(-1);
  bool plain = column_stride == 1 || columns == 1, turned = row_stride == 1 || rows == 1;
  require(plain || turned,
          "gemm: {} {} has no unit stride in its last two dimensions (strides {}); copy it first", name, x,
          x.strides());
  // A leading dimension must reach over its vector even where it is never stepped.
  bool use_plain =
      plain && (columns == 1 ? row_stride >= 1 || rows == 1 : rows == 1 || row_stride >= columns);
  GemmMatrix m;
  m.transposed = use_plain ? 0 : 1;
  m.leading = use_plain ? (rows == 1 ? columns : row_stride) : (columns == 1 ? rows : column_stride);
  m.batch_stride = x.rank() == 3 ? x.stride(0) : 0;
  m.dtype = static_cast<int32_t>(x.dtype());
  m.alignment = alignment_of(x.raw());
  return m;
}

// A scale per block is read in one layout: `scales` is [⌈rows / block_rows⌉, ⌈k / 128⌉].
int32_t scale_flags(const char* name, int64_t block_rows, const Tensor& scales, int32_t vec128,
                    int32_t blk128x128) {
  if (block_rows == 0) return 0;
  require(block_rows == 1 ? scales.stride(0) == 1 && scales.stride(1) == scales.size(0)
                          : scales.stride(1) == 1 && scales.stride(0) % 4 == 0,
          "gemm: the scales of {}, {} with strides {}, do not lie as cuBLASLt reads them", name, scales,
          scales.strides());
  return block_rows == 1 ? vec128 : blk128x128;
}

GemmKey key_of(const GemmArgs& args) {
  int32_t flags = (args.beta == 0 ? kBetaZero : 0) | (args.fast_accum ? kFastAccum : 0);
  if (args.a_block_rows)
    flags |=
        scale_flags("a", args.a_block_rows, args.a_scale, kScaleVec128A, kScaleBlk128x128A) |
        scale_flags("b", args.b_block_rows, args.b_scale.transpose(0, 1), kScaleVec128B, kScaleBlk128x128B);
  return {args.c.size(-2),
          args.c.size(-1),
          args.a.size(-1),
          args.c.rank() == 3 ? args.c.size(0) : 1,
          matrix_of("a", args.a),
          matrix_of("b", args.b),
          matrix_of("c", args.c),
          args.bias ? static_cast<int32_t>(args.bias.dtype()) : -1,
          flags,
          args.bias ? alignment_of(args.bias.raw()) : 0};
}

GemmPlans::GemmPlans() { check_blas(cublasLtCreate(&handle_), "starting"); }
GemmPlans::~GemmPlans() { cublasLtDestroy(handle_); }

void GemmPlans::autotune(AutotuneMode mode) {
  std::lock_guard lock(mutex_);
  autotune_mode_ = mode;
  if (mode != AutotuneMode::Off) plans_.clear();  // plans made before autotuning
}

std::string GemmPlans::tuned_algos() const {
  std::lock_guard lock(mutex_);
  std::string text = tuned_algos_header() + "\n";
  for (const auto& [key, algo] : tuned_)
    text += fmt::format("{} {} {} {}\n", hexadecimal(key), hexadecimal(algo.algorithm), algo.workspace,
                        algo.unfused ? "unfused" : "fused");
  return text;
}

void GemmPlans::use(std::string_view tuned) {
  std::lock_guard lock(mutex_);
  std::istringstream lines{std::string(tuned)};
  std::string header, key_text, algorithm_text, form;
  size_t workspace = 0;
  if (!std::getline(lines, header) || header != tuned_algos_header()) return;
  while (lines >> key_text >> algorithm_text >> workspace >> form) {
    GemmKey key;
    GemmAlgo algo;
    algo.workspace = workspace;
    algo.unfused = form == "unfused";
    if ((algo.unfused || form == "fused") && from_hexadecimal(key_text, key) &&
        from_hexadecimal(algorithm_text, algo.algorithm))
      tuned_[key] = algo;
  }
  plans_.clear();
}

GemmPlan& GemmPlans::plan(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args,
                          const Tensor& x) {
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make_plan(ctx, key, args, x)).first;
  return found->second;
}

GemmPlan GemmPlans::make_plan(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args,
                              const Tensor& x) {
  // GEMMs that run for microseconds are not worth timing.
  double work = 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k) *
                static_cast<double>(key.batch);
  bool worth = autotune_mode_ != AutotuneMode::Off && work > 1e9;
  constexpr int most = 16;
  GemmPlan plan;
  std::vector<GemmAlgo> algos;
  if (key.bias_dtype >= 0) {
    plan = describe(key, true);
    set_scales(plan, args);
    algos = propose(key, plan, worth ? most : 1);
  }
  if (algos.empty() && (!x || key.bias_dtype < 0)) {
    plan = describe(key, false);
    set_scales(plan, args);
    algos = propose(key, plan, worth ? most : 1);
  }
  if (x && algos.empty()) {
    plan.algo.unfused = true;
    return plan;
  }
  require(!algos.empty(), "gemm: cuBLASLt has no kernel for a {} · b {} into c {}{}", args.a, args.b, args.c,
          args.a_block_rows ? "; a scale per block needs a GPU of compute capability 9.0, elsewhere use "
                              "--fp8-recipe tensorwise"
                            : "");
  plan.algo = algos[0];
  // DGELU is slower than two kernels for some shapes, GELU_AUX for none: see docs/performance/kernels.md.
  plan.algo.unfused = (key.flags & kGeluSlope) != 0;
  if (auto known = tuned_.find(key); known != tuned_.end())
    plan.algo = known->second;
  else if (worth && (x || algos.size() > 1) && !capturing(static_cast<cudaStream_t>(ctx.stream.native())))
    if (auto best = fastest(ctx, key, plan, algos, args, x)) {
      best->algo.unfused = x && time_unfused(ctx, key, args, x, best->milliseconds) < best->milliseconds;
      tuned_[key] = best->algo;
      if (autotune_mode_ == AutotuneMode::UseAtOnce) plan.algo = best->algo;
    }
  return plan;
}

std::vector<GemmAlgo> GemmPlans::propose(const GemmKey& key, GemmPlan& plan, int most) const {
  constexpr size_t max_workspace = size_t{32} << 20;  // as sm_90 kernels need
  cublasLtMatmulPreferenceOpaque_t preference;
  check_blas(cublasLtMatmulPreferenceInit(&preference), "planning a GEMM");
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
               "planning a GEMM");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, max_workspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.b.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.a.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.c.alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.c.alignment));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, &plan.operation, &plan.b, &plan.a, &plan.c,
                                                         &plan.c, &preference, most, results.data(), &found);
  std::vector<GemmAlgo> algos;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algos.push_back({results[static_cast<size_t>(i)].algo, results[static_cast<size_t>(i)].workspaceSize});
  return algos;
}

cublasStatus_t GemmPlans::launch(const KernelContext& ctx, GemmPlan plan, const GemmArgs& args,
                                 const Tensor& x, void* c, void* workspace) const {
  if (plan.fused_bias)
    set(&plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.raw()));
  if (x) set(&plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(x.raw()));
  set_scales(plan, args);
  float alpha = static_cast<float>(args.alpha), beta = static_cast<float>(args.beta);
  bool wide = args.c.dtype() == DType::F64;
  const void* factors[2] = {&alpha, &beta};
  if (wide) factors[0] = &args.alpha, factors[1] = &args.beta;
  return cublasLtMatmul(handle_, &plan.operation, factors[0], args.b.raw(), &plan.b, args.a.raw(), &plan.a,
                        factors[1], c, &plan.c, c, &plan.c, &plan.algo.algorithm, workspace,
                        plan.algo.workspace, static_cast<cudaStream_t>(ctx.stream.native()));
}

// Times algorithms into c, which is written again later, or, where the GEMM adds to c, into scratch memory;
// without memory for that nothing is timed. A busy GPU slows down at its power limit, by how much depends on
// the kernel: so each candidate near the best runs alone long enough to settle.
std::optional<GemmPlans::Timed> GemmPlans::fastest(const KernelContext& ctx, const GemmKey& key,
                                                   const GemmPlan& plan, const std::vector<GemmAlgo>& algos,
                                                   const GemmArgs& args, const Tensor& x) {
  size_t elements = 0, workspace_bytes = 0;
  if (!(key.flags & kBetaZero))
    elements =
        static_cast<size_t>((key.batch - 1) * key.c.batch_stride + (key.m - 1) * key.c.leading + key.n);
  for (const GemmAlgo& algo : algos) workspace_bytes = std::max(workspace_bytes, algo.workspace);
  std::unique_ptr<Workspace> own, workspace;
  try {
    own = std::make_unique<Workspace>(ctx, elements * size_of(args.c.dtype()));
    workspace = std::make_unique<Workspace>(ctx, workspace_bytes);
  } catch (const Error&) {
    return {};
  }
  void* c = elements > 0 ? own->data() : args.c.raw();
  Stopwatch watch(static_cast<cudaStream_t>(ctx.stream.native()));
  auto time = [&](const GemmAlgo& algo, int count) {
    GemmPlan candidate = plan;
    candidate.algo = algo;
    return watch.time(count, [&] {
      return launch(ctx, candidate, args, x, c, workspace->data()) == CUBLAS_STATUS_SUCCESS;
    });
  };
  for (float busy = 0; !warm_ && busy < 200;) busy += time(algos[0], 8);
  warm_ = true;
  std::vector<Timed> entries;
  float best = Stopwatch::kNever;
  for (const GemmAlgo& algo : algos) {
    if (time(algo, 1) == Stopwatch::kNever) continue;  // the first launch loads the kernel
    entries.push_back({algo, std::min(time(algo, 1), time(algo, 1))});
    best = std::min(best, entries.back().milliseconds);
  }
  if (entries.empty()) return {};
  std::erase_if(entries, [&](const Timed& entry) { return entry.milliseconds > 1.15f * best; });
  // Forward and backward over the candidates: the last finds the GPU warmer than the first.
  const int count = std::max(2, long_run(best) / 2);
  for (Timed& entry : entries) entry.milliseconds = 0;
  auto settle = [&](Timed& entry) {
    time(entry.algo, count);
    entry.milliseconds += time(entry.algo, count) / static_cast<float>(2 * count);
  };
  std::for_each(entries.begin(), entries.end(), settle);
  std::for_each(entries.rbegin(), entries.rend(), settle);
  return *std::min_element(entries.begin(), entries.end(), [](const Timed& one, const Timed& other) {
    return one.milliseconds < other.milliseconds;
  });
}

// Times the GEMM with its bias and a GELU kernel, into the outputs themselves: they are written again later.
float GemmPlans::time_unfused(const KernelContext& ctx, const GemmKey& key, const GemmArgs& args,
                              const Tensor& x, float expected) {
  const KernelTable& kernels = kernels_for(x.device());
  const bool slope = (key.flags & kGeluSlope) != 0;
  GemmArgs plain_args = args;
  if (!slope) plain_args.c = x;
  const GemmKey plain_key = key_of(plain_args);
  GemmPlan plain = plan(ctx, plain_key, plain_args, {});
  if (auto known = tuned_.find(plain_key); known != tuned_.end()) plain.algo = known->second;
  Stopwatch watch(static_cast<cudaStream_t>(ctx.stream.native()));
  auto work = [&] {
    multiply(ctx, plain, plain_args, {});
    if (slope)
      kernels.unary_backward(ctx, {Unary::GeluTanh, x, {}, args.c, args.c});
    else
      kernels.unary(ctx, {Unary::GeluTanh, x, {}, args.c});
    return true;
  };
  const int count = long_run(expected);
  watch.time(count, work);
  return watch.time(count, work) / static_cast<float>(count);
}

void GemmPlans::multiply(const KernelContext& ctx, const GemmPlan& plan, const GemmArgs& args,
                         const Tensor& x) const {
  Workspace workspace(ctx, plan.algo.workspace);
  cublasStatus_t status = launch(ctx, plan, args, x, args.c.raw(), workspace.data());
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("gemm: a {} · b {} into c {}: cuBLASLt says {}", args.a, args.b, args.c,
         cublasLtGetStatusString(status));
  if (args.bias && !plan.fused_bias) add_bias(ctx, args.c, args.bias);
}

void GemmPlans::run(const KernelContext& ctx, const GemmArgs& args) {
  std::unique_lock lock(mutex_);
  const GemmPlan decided = plan(ctx, key_of(args), args, {});
  lock.unlock();
  multiply(ctx, decided, args, {});
}

bool GemmPlans::run(const KernelContext& ctx, const GemmArgs& args, const Tensor& x, Gelu form) {
  GemmKey key = key_of(args);
  key.flags |= form == Gelu::Slope ? kGeluSlope : kGelu;
  key.x_leading = x.stride(0);
  key.x_alignment = alignment_of(x.raw());
  std::unique_lock lock(mutex_);
  const GemmPlan decided = plan(ctx, key, args, x);
  lock.unlock();
  if (decided.algo.unfused) return false;
  multiply(ctx, decided, args, x);
  return true;
}

}  // namespace megatron::cuda
