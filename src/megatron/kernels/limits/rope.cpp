#include "megatron/kernels/limits/rope.h"

#include "megatron/kernels/limits/alignment.h"

namespace megatron {
namespace limits {
namespace {

// Strides of tokens, of groups of heads, and of heads.
int64_t strides_of(const Tensor& x) { return x.stride(0) | (x.rank() == 4 ? x.stride(1) : 0) | x.stride(-2); }

RopeThreads shared(bool vectors, int64_t tokens, int64_t heads, int64_t units, int64_t width) {
  const int64_t together = vectors && heads % 2 == 0 ? 2 : 1;
  return {vectors, tokens * (heads / together) * (units / (vectors ? width : 1))};
}

}  // namespace

RopeThreads rope_threads(const RopeArgs& args) {
  const Tensor& x = args.x;
  const int64_t width = 16 / static_cast<int64_t>(size_of(x.dtype())), head_dim = x.size(-1),
                half = args.cos.size(1), heads = x.rank() == 4 ? x.size(1) * x.size(2) : x.size(-2);
  const bool vectors = is_aligned(x) && is_aligned(args.y) &&
                       (strides_of(x) | strides_of(args.y) | head_dim | half) % width == 0;
  return shared(vectors, x.size(0), heads, head_dim - half, width);
}

RopeThreads rope_threads(const QkvSplitArgs& args) {
  const int64_t width = 16 / static_cast<int64_t>(size_of(args.qkv.dtype())), groups = args.k.size(1),
                head_dim = args.k.size(2), half = args.cos ? args.cos.size(1) : 0;
  const bool vectors = is_aligned(args.qkv) && is_aligned(args.q) && is_aligned(args.k) &&
                       is_aligned(args.v) && (head_dim | half) % width == 0;
  return shared(vectors, args.k.size(0), args.q.size(1) + 2 * groups, head_dim - half, width);
}

}  // namespace limits

namespace {

std::optional<Refusal> too_many(int64_t threads, int64_t tokens) {
  if (threads < limits::kThreads) return {};
  return Refusal{
      LaunchLimit::Tokens, tokens,
      fmt::format("{} tokens of a micro-batch on a rank are more than a launch of the CUDA kernels takes",
                  tokens)};
}

}  // namespace

std::optional<Refusal> refuse(const RopeArgs& args, const GpuFacts&) {
  if (args.x.numel() == 0) return {};
  return too_many(limits::rope_threads(args).count, args.x.size(0));
}
std::optional<Refusal> refuse(const QkvSplitArgs& args, const GpuFacts&) {
  if (args.qkv.numel() == 0) return {};
  return too_many(limits::rope_threads(args).count, args.k.size(0));
}

}  // namespace megatron
