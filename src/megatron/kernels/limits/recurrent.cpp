#include "megatron/kernels/limits/recurrent.h"

#include <algorithm>

#include "megatron/kernels/limits/grid.h"

namespace megatron {
namespace {

// Heads are a dimension of the grid.
std::optional<Refusal> too_many_heads(LaunchLimit limit, int64_t heads) {
  if (heads <= limits::kGridRows) return {};
  return Refusal{limit, heads,
                 fmt::format("the CUDA kernels take {} heads on a rank, not {}", limits::kGridRows, heads)};
}

// Tokens, and channels with their weights, are counted in 30 bits.
template <class Args>
std::optional<Refusal> too_large(const Args& args) {
  const Tensor& x = args.x;
  if (const int64_t width = args.weight.size(-1); width > limits::kConvolutionWidth)
    return Refusal{LaunchLimit::ConvolutionWidth, width,
                   fmt::format("the kernels take convolutions over {} tokens, not {}",
                               limits::kConvolutionWidth, width)};
  if ((x.size(0) | x.size(1) * limits::kConvolutionWidth | x.stride(0)) >> 30 == 0) return {};
  return Refusal{
      LaunchLimit::Tokens, x.size(0),
      fmt::format("{} tokens of a micro-batch on a rank, of {} channels each, are more than a launch "
                  "of the CUDA kernels takes",
                  x.size(0), x.size(1))};
}

// Key channels of a state lie in the registers of a few threads.
template <class Args>
std::optional<Refusal> too_wide_rule(const Args& args) {
  if (args.key_channels > limits::kDeltaKeyChannels)
    return Refusal{LaunchLimit::DeltaKeys, args.key_channels,
                   fmt::format("the CUDA kernels take {} key channels of a delta net's head",
                               limits::kDeltaKeyChannels)};
  return too_many_heads(LaunchLimit::DeltaHeads, args.value_heads);
}

}  // namespace

std::optional<Refusal> refuse(const CausalConvArgs& args, const GpuFacts&) { return too_large(args); }
std::optional<Refusal> refuse(const CausalConvBackwardArgs& args, const GpuFacts&) { return too_large(args); }

std::optional<Refusal> refuse(const SsdArgs& args, const GpuFacts&) {
  if (args.state) {
    if (args.states <= limits::kDecodedStates) return {};
    return Refusal{LaunchLimit::DecodedState, args.states,
                   fmt::format("the CUDA kernels decode with {} states of a channel, not {}",
                               limits::kDecodedStates, args.states)};
  }
  if (args.chunk > limits::kScanChunk)
    return Refusal{LaunchLimit::ScanChunk, args.chunk,
                   fmt::format("the CUDA kernels take chunks of {} tokens", limits::kScanChunk)};
  if (std::max({limits::scan_tiles(args.channels, args.states), limits::scan_tiles(args.chunk, args.channels),
                limits::scan_tiles(args.chunk, args.states)}) > limits::kGridRows)
    return Refusal{
        LaunchLimit::ScanState, std::max(args.channels, args.states),
        fmt::format("a state of {} x {} is too large for the CUDA kernels, whose launches have {} "
                    "tiles of {} x {}",
                    args.channels, args.states, limits::kGridRows, limits::kScanTile, limits::kScanTile)};
  return too_many_heads(LaunchLimit::ScanHeads, args.heads);
}
std::optional<Refusal> refuse(const SsdBackwardArgs& args, const GpuFacts& gpu) {
  return refuse(args.forward, gpu);
}

std::optional<Refusal> refuse(const DeltaRuleArgs& args, const GpuFacts&) { return too_wide_rule(args); }
std::optional<Refusal> refuse(const DeltaRuleBackwardArgs& args, const GpuFacts& gpu) {
  return refuse(args.forward, gpu);
}

std::optional<Refusal> refuse(const ChannelDeltaArgs& args, const GpuFacts&) { return too_wide_rule(args); }
std::optional<Refusal> refuse(const ChannelDeltaBackwardArgs& args, const GpuFacts& gpu) {
  return refuse(args.forward, gpu);
}

}  // namespace megatron
