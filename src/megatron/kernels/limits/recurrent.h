#pragma once

#include "megatron/kernels/limits/refusal.h"
#include "megatron/kernels/recurrent.h"

namespace megatron {
namespace limits {

inline constexpr int kConvolutionWidth = 16;   // tokens, on the CPU too
inline constexpr int kDeltaKeyChannels = 256;  // of a delta net's head
inline constexpr int kScanChunk = 2048;        // tokens of a chunk of Mamba's scan
inline constexpr int kScanTile = 64;           // tokens, channels or states of a tile of it
inline constexpr int kDecodedStates = 256;     // of a channel of Mamba whose state goes from token to token

// Blocks of a scan's launch that lie above each other, for matrices of a chunk's tokens, a head's channels or
// its states.
constexpr int64_t scan_tiles(int64_t rows, int64_t columns) {
  return ((rows + kScanTile - 1) / kScanTile) * ((columns + kScanTile - 1) / kScanTile);
}

}  // namespace limits

std::optional<Refusal> refuse(const CausalConvArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const CausalConvBackwardArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const SsdArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const SsdBackwardArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const DeltaRuleArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const DeltaRuleBackwardArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const ChannelDeltaArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const ChannelDeltaBackwardArgs& args, const GpuFacts& gpu);

}  // namespace megatron
