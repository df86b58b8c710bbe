#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/base/json.h"
#include "megatron/checkpoint/safetensors.h"
#include "support/test_device.h"
#include "support/to_doubles.h"

namespace megatron::testing {

// A file of the golden archives: golden_path("numerics", "rope.safetensors"). A subject that comes in several
// archives (hf_models_a, _b, …) is one subject here.
inline std::string golden_path(const std::string& subject, const std::string& file) {
  const std::filesystem::path root = MEGATRON_GOLDEN_DIR;
  for (const char* part : {"", "_a", "_b", "_c", "_d"}) {
    std::filesystem::path path = root / (subject + part) / file;
    if (std::filesystem::exists(path)) return path.string();
  }
  fail("there is no golden file {} of {}: is its archive in tests/golden?", file, subject);
}

inline Json golden_json(const std::string& subject, const std::string& file) {
  return Json::read(golden_path(subject, file + ".json"));
}
inline SafetensorsFile golden_tensors(const std::string& subject, const std::string& file) {
  return SafetensorsFile(golden_path(subject, file + ".safetensors"));
}

// A tensor of this rank in another dtype.
inline Tensor in_dtype(RankContext& ctx, const Tensor& tensor, DType dtype) {
  if (dtype == tensor.dtype()) return tensor;
  Tensor result = ctx.empty(tensor.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, result});
  return result;
}

// The golden tensor where this rank computes, in `dtype`.
inline Tensor to_device(RankContext& ctx, const Tensor& tensor, DType dtype) {
  return in_dtype(ctx, ctx.from_host(tensor.raw(), tensor.shape(), tensor.dtype()), dtype);
}
inline Tensor to_device(RankContext& ctx, const Tensor& tensor) {
  return to_device(ctx, tensor, tensor.dtype());
}

// What |actual − expected| may be: absolute + relative · |expected| + of_max · largest |expected|.
struct Tolerance {
  double absolute = 0, relative = 0, of_max = 0;
};
inline constexpr Tolerance kExact{};
inline constexpr Tolerance kElementwise{2e-6, 1e-5, 0};  // fp32: elementwise, norms, losses, optimizers
inline constexpr Tolerance kAttention{1e-5, 0, 0};       // fp32: attention and ssd, forward
inline constexpr Tolerance kGradient{0, 0, 2e-5};        // fp32: gradients of those

// NaN equals NaN, and infinities themselves. The message names the worst element.
inline ::testing::AssertionResult is_close(const std::string& name, const Shape& shape,
                                           const std::vector<double>& actual,
                                           const std::vector<double>& expected, Tolerance tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure()
           << name << " has " << actual.size() << " elements, expected " << expected.size();
  double largest = 0, worst = 0;
  for (double value : expected)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  size_t at = 0, wrong = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double allowed = tolerance.absolute + tolerance.relative * std::abs(e) + tolerance.of_max * largest;
    double excess = std::abs(a - e) - allowed;
    if (!std::isfinite(a) || !std::isfinite(e)) excess = HUGE_VAL;
    if (excess <= 0) continue;
    ++wrong;
    if (wrong == 1 || excess > worst) worst = excess, at = i;
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  std::string place;
  for (int dim = shape.rank() - 1, rest = static_cast<int>(at); dim >= 0; --dim) {
    place = std::to_string(rest % shape[dim]) + (place.empty() ? "" : ", ") + place;
    rest /= static_cast<int>(shape[dim]);
  }
  return ::testing::AssertionFailure() << fmt::format(
             "{} {}: {} of {} elements are off, worst [{}]: {:.9g}, expected {:.9g}, difference {:.3g} "
             "(largest expected {:.3g})",
             name, shape, wrong, actual.size(), place, actual[at], expected[at],
             std::abs(actual[at] - expected[at]), largest);
}

// A computed tensor against one of a golden file (or any other on the CPU).
inline ::testing::AssertionResult is_close(RankContext& ctx, const std::string& name, const Tensor& actual,
                                           const Tensor& expected, Tolerance tolerance) {
  if (!actual.defined()) return ::testing::AssertionFailure() << name << " was not computed";
  if (actual.numel() != expected.numel())
    return ::testing::AssertionFailure() << fmt::format("{} is {}, expected {}", name, actual, expected);
  return is_close(name, expected.shape(), to_doubles(ctx, actual), to_doubles(expected), tolerance);
}

}  // namespace megatron::testing
