#include "megatron/kernels/limits/attention.h"

#include <algorithm>

#include "megatron/kernels/limits/grid.h"

namespace megatron {
namespace {

std::optional<Refusal> too_wide(int64_t head_dim, int64_t max) {
  if (head_dim <= max) return {};
  return Refusal{
      LaunchLimit::HeadDim, head_dim,
      fmt::format("attention's heads of {} channels are too wide for the CUDA kernels, which take {}",
                  head_dim, max)};
}

std::optional<Refusal> too_much_memory(const AttentionArgs& args, const GpuFacts& gpu, int64_t bytes) {
  if (gpu.shared_memory == 0 || bytes <= gpu.shared_memory) return {};
  return Refusal{LaunchLimit::AttentionMemory, bytes,
                 fmt::format("attention's heads of {} and {} channels in {} need {} KiB of a GPU's shared "
                             "memory, of which it has {}",
                             args.q.size(2), args.v.size(2), args.q.dtype(), bytes / 1024 + 1,
                             gpu.shared_memory / 1024)};
}

// Heads and sequences are dimensions of the grid.
std::optional<Refusal> too_many(const AttentionArgs& args) {
  if (const int64_t heads = args.q.size(1); heads > limits::kGridRows)
    return Refusal{LaunchLimit::AttentionHeads, heads,
                   fmt::format("the CUDA kernels take {} heads on a rank, not {}", limits::kGridRows, heads)};
  if (args.batch > limits::kGridRows)
    return Refusal{
        LaunchLimit::Sequences, args.batch,
        fmt::format("the CUDA kernels take {} sequences at once, not {}", limits::kGridRows, args.batch)};
  return {};
}

int64_t sum_bytes(const AttentionArgs& args) {
  return static_cast<int64_t>(size_of(accumulation_dtype(args.q.dtype())));
}

}  // namespace

std::optional<Refusal> refuse(const AttentionArgs& args, const GpuFacts& gpu) {
  const int64_t d = args.q.size(2), dv = args.v.size(2);
  if (auto refusal = too_wide(dv, args.blocks ? limits::kMaxPagedHeadDim : limits::kMaxHeadDim))
    return refusal;
  if (auto refusal = too_many(args)) return refusal;
  return too_much_memory(args, gpu, limits::attention_memory(d, dv, sum_bytes(args)));
}

std::optional<Refusal> refuse(const AttentionBackwardArgs& args, const GpuFacts& gpu) {
  const AttentionArgs& forward = args.forward;
  const int64_t d = forward.q.size(2), dv = forward.v.size(2);
  if (auto refusal = too_wide(std::max(d, dv), limits::kMaxHeadDim)) return refusal;
  if (auto refusal = too_many(forward)) return refusal;
  // The gradient of a bias has queries, batches and heads in the grid.
  if (args.dbias && std::max(args.dbias.size(2), args.dbias.size(0) * args.dbias.size(1)) > limits::kGridRows)
    return Refusal{LaunchLimit::Tokens, forward.q.size(0),
                   fmt::format("{} tokens of a micro-batch on a rank are more than a launch of the CUDA "
                               "kernels takes for the gradient of attention's bias",
                               forward.q.size(0))};
  return too_much_memory(forward, gpu, limits::attention_backward_memory(d, dv, sum_bytes(forward)));
}

}  // namespace megatron
