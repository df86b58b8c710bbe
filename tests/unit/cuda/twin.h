#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/device/gpu_info.h"
#include "unit/cuda/poisoned_memory.h"

// Runs one kernel on the CPU and on the GPU with the same inputs, and compares what they leave behind.
namespace megatron::testing {

struct Both {
  Tensor cpu, gpu;
  template <class F>
  Both map(F&& f) const {
    return {f(cpu), f(gpu)};
  }
};

// What a result of this dtype may differ by, relative to its size: sums in another order, another exp.
inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return 1e-11;
    case DType::F32:
      return 1e-5;
    case DType::F16:
      return 2e-3;
    default:
      return 1.2e-2;
  }
}

// Under compute-sanitizer kernels are hundreds of times slower: bench/sanitize.sh sets MEGATRON_SANITIZED to
// the dtypes that a test shall take, or "all", and tests that would be long take sizes that reach the same
// code.
inline bool sanitized() { return std::getenv("MEGATRON_SANITIZED") != nullptr; }
inline std::vector<DType> some_of(std::vector<DType> dtypes) {
  const std::string wanted = sanitized() ? std::getenv("MEGATRON_SANITIZED") : "all";
  if (wanted != "all")
    std::erase_if(dtypes, [&](DType dtype) { return wanted.find(name_of(dtype)) == std::string::npos; });
  return dtypes;
}
inline std::vector<DType> floats() { return some_of({DType::F64, DType::F32, DType::BF16, DType::F16}); }

class Twin : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU here: the CUDA kernels are NOT tested";
  }

  // One context for all tests: starting the libraries takes longer than most tests. Its memory is poisoned,
  // unless MEGATRON_UNWRITTEN says that a tool looks for reads of what was not written.
  static RankContext& gpu() {
    static RankContext context(Device{DeviceType::Cuda, 0});
    static std::once_flag once;
    std::call_once(once, [] {
      if (!std::getenv("MEGATRON_UNWRITTEN"))
        context.allocator = std::make_shared<Allocator>(std::make_shared<PoisonedMemory>(context.runtime));
    });
    return context;
  }
  RankContext cpu{kCpu, 2};

  Both on_both(const Tensor& host) {
    if (!host.defined()) return {};
    Tensor device = gpu().from_host(host.raw(), host.shape(), host.dtype());
    return {host, device};
  }
  Both cast(const std::vector<double>& values, Shape shape, DType dtype) {
    Tensor wide = cpu.from_vector(values, shape), narrow = cpu.empty(shape, dtype);
    cpu.kernels->copy(cpu.kernel_context(), {wide, narrow});
    return on_both(narrow);
  }
  // In [low, high).
  Both uniform(Shape shape, DType dtype, double low = -1, double high = 1) {
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    ++seed_;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = low + (high - low) * (Philox::at({seed_, 7}, i).word[0] * 0x1p-32);
    return cast(values, shape, dtype);
  }
  Both integers(Shape shape, int64_t low, int64_t high, DType dtype = DType::I64) {
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    ++seed_;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(low + Philox::at({seed_, 7}, i).word[0] % (high - low));
    return cast(values, shape, dtype);
  }
  // Holds a value that no kernel leaves behind, so that unwritten elements show.
  Both output(Shape shape, DType dtype) {
    return cast(std::vector<double>(shape.numel(), 77.0), shape, dtype);
  }

  // make(on) builds the arguments with on(both) for each tensor.
  template <class Args, class Make>
  void run(Kernel<Args> KernelTable::*kernel, Make make) {
    ASSERT_NE(cpu.kernels->*kernel, nullptr) << "the CPU has no such kernel to compare with";
    (cpu.kernels->*kernel)(cpu.kernel_context(), make([](const Both& x) { return x.cpu; }));
    (gpu().kernels->*kernel)(gpu().kernel_context(), make([](const Both& x) { return x.gpu; }));
  }

  std::vector<double> values(RankContext& context, const Tensor& x) {
    std::vector<char> bytes(x.bytes());
    context.to_host(x, bytes.data());
    Tensor host = Tensor::wrap(bytes.data(), x.shape(), x.dtype());
    Tensor wide = cpu.empty(x.shape(), DType::F64);
    cpu.kernels->copy(cpu.kernel_context(), {host, wide});
    return cpu.to_vector<double>(wide);
  }

  // Every element within tolerance · (its size + the root mean square of all). 0: exactly equal.
  void same(const Both& x, double tolerance, const std::string& what) {
    auto expected = values(cpu, x.cpu), got = values(gpu(), x.gpu);
    double square = 0, count = 0;
    for (double v : expected)
      if (std::isfinite(v)) square += v * v, ++count;
    double rms = count ? std::sqrt(square / count) : 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
      if (expected[i] == got[i]) continue;
      double error = std::abs(expected[i] - got[i]), allowed = tolerance * (std::abs(expected[i]) + rms);
      ASSERT_TRUE(error <= allowed) << what << ": element " << i << " of " << x.cpu.str() << " is " << got[i]
                                    << " on the GPU, " << expected[i] << " on the CPU";
    }
  }
  // ‖difference‖ ≤ tolerance · ‖expected‖, and no element further off than its own last place and eight times
  // the tolerance of the root mean square. For sums whose terms were rounded: what cancels leaves an error of
  // the size of the terms.
  void alike(const Both& x, double tolerance, const std::string& what) {
    auto expected = values(cpu, x.cpu), got = values(gpu(), x.gpu);
    double square = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      double difference = expected[i] == got[i] ? 0 : expected[i] - got[i];
      square += expected[i] * expected[i];
      error += difference * difference;
    }
    double rms = std::sqrt(square / static_cast<double>(expected.size()));
    EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(square)) << what;
    for (size_t i = 0; i < expected.size(); ++i) {
      double difference = expected[i] == got[i] ? 0 : std::abs(expected[i] - got[i]);
      ASSERT_LE(difference, tolerance * (8 * rms + std::abs(expected[i]))) << what << ", element " << i;
    }
  }
  void same(const Both& x, const std::string& what) { same(x, tolerance_of(x.cpu.dtype()), what); }

 private:
  uint64_t seed_ = 0;
};

// For kernels of Hopper, which must take there what they are tested with; elsewhere there is nothing to test.
class Sm90Twin : public Twin {
 protected:
  void SetUp() override {
    Twin::SetUp();
    if (!IsSkipped() && look_for_gpus().gpus.front().compute_capability != 90)
      GTEST_SKIP() << "the kernel is for Hopper: NOT tested";
  }
};

inline std::string label(DType dtype) { return std::string(name_of(dtype)); }

}  // namespace megatron::testing
