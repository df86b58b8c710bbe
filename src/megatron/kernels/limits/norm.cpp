#include "megatron/kernels/limits/norm.h"

#include <algorithm>

#include "megatron/kernels/limits/alignment.h"

namespace megatron {
namespace {

int64_t element_bytes(const Tensor& x) { return static_cast<int64_t>(size_of(x.dtype())); }

// Whether a row, and one that stands right behind another, is made of whole vectors.
bool fills_vectors(const Tensor& x) { return x.size(-1) * element_bytes(x) % 16 == 0; }

std::optional<Refusal> too_long(const Tensor& x, bool vectors) {
  const int64_t n = x.size(-1), max = limits::norm_row(element_bytes(x), vectors);
  if (n <= max) return {};
  return Refusal{LaunchLimit::NormRow, n,
                 fmt::format("norms support {} elements per row in {}{}, got {}", max, x.dtype(),
                             vectors ? "" : " where rows fill no whole vectors", n)};
}

// `also` lies in rows without gaps, one for each row of x.
template <class Args>
std::optional<Refusal> too_long(const Args& args, const Tensor& statistics, const Tensor& dy,
                                std::initializer_list<const Tensor*> also) {
  const Tensor& x = args.x;
  if (x.numel() == 0 || statistics.numel() == 0) return {};
  if (statistics.numel() >> 31 != 0 || std::max(x.stride(0), args.gate.stride(0)) >> 31 != 0)
    return Refusal{LaunchLimit::Tokens, x.size(0),
                   fmt::format("{} tokens of a micro-batch on a rank are more than a launch of the CUDA "
                               "kernels takes",
                               x.size(0))};
  const int64_t size = x.size(1) / statistics.size(1), bytes = element_bytes(x),
                strides = x.stride(0) | args.gate.stride(0) | (dy ? dy.stride(0) : 0) | size;
  const bool vectors =
      strides * bytes % 16 == 0 && limits::is_aligned(x) && limits::is_aligned(args.gate) &&
      limits::is_aligned(args.weight) && limits::is_aligned(dy) &&
      std::all_of(also.begin(), also.end(), [](const Tensor* one) { return limits::is_aligned(*one); });
  const int64_t max = limits::gated_norm_row(bytes, vectors);
  if (size <= max) return {};
  return Refusal{
      LaunchLimit::GatedNormRow, size,
      fmt::format("the CUDA kernels norm {} gated channels at once in {}{}, not {}", max, x.dtype(),
                  vectors ? "" : " where the projection's rows fill no whole vectors", size)};
}

}  // namespace

namespace limits {

bool in_vectors(const NormArgs& args) {
  return fills_vectors(args.x) && has_aligned_rows(args.x) && has_aligned_rows(args.residual) &&
         is_aligned(args.sum) && is_aligned(args.weight) && is_aligned(args.bias) && is_aligned(args.y);
}

bool in_vectors(const NormBackwardArgs& args) {
  return fills_vectors(args.x) && has_aligned_rows(args.x) && has_aligned_rows(args.dy) &&
         has_aligned_rows(args.dsum) && is_aligned(args.weight) && is_aligned(args.dx);
}

}  // namespace limits

std::optional<Refusal> refuse(const NormArgs& args, const GpuFacts&) {
  return too_long(args.x, limits::in_vectors(args));
}
std::optional<Refusal> refuse(const NormBackwardArgs& args, const GpuFacts&) {
  return too_long(args.x, limits::in_vectors(args));
}
std::optional<Refusal> refuse(const GatedNormSumsArgs& args, const GpuFacts&) {
  return too_long(args, args.sums, args.dy, {});
}
std::optional<Refusal> refuse(const GatedNormArgs& args, const GpuFacts&) {
  return too_long(args, args.squares, {}, {&args.y});
}
std::optional<Refusal> refuse(const GatedNormBackwardArgs& args, const GpuFacts&) {
  return too_long(args, args.squares, args.dy, {&args.dx, &args.dgate});
}

}  // namespace megatron
