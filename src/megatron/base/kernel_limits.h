#pragma once

#include <cstdint>

// What kernels take at most. They check it themselves, and the rules of a configuration refuse more of it
// before a run starts.
namespace megatron::limits {

inline constexpr int kConvolutionWidth = 16;  // tokens, on the CPU too

// All that follows is of the CUDA kernels.
inline constexpr int kMinCapability = 80;           // bf16 on tensor cores, copies beside the computation
inline constexpr int kFp8Capability = 89;           // from here on
inline constexpr int kBlockwiseFp8Capability = 90;  // this one alone: cuBLASLt's scales per block of 128

inline constexpr int64_t kGridRows = 65535;            // blocks of a launch in its second and third dimension
inline constexpr int64_t kTileRows = 64 * kGridRows;   // of matrices in tiles, which are as high or higher
inline constexpr int64_t kThreads = int64_t{1} << 31;  // of a launch whose threads are counted in 32 bits

inline constexpr int kMaxHeadDim = 256;        // of attention
inline constexpr int kDeltaKeyChannels = 256;  // of a delta net's head
inline constexpr int kScanChunk = 2048;        // tokens of a chunk of Mamba's scan
inline constexpr int kScanTile = 64;           // tokens, channels or states of a tile of it
inline constexpr int kExpertSlots = 8192;      // experts among which tokens are sorted
inline constexpr int kSharingRanks = 128;      // of a process whose ranks share GPUs

// Blocks of a scan's launch that lie above each other, for matrices of a chunk's tokens, a head's channels or
// its states.
constexpr int64_t scan_tiles(int64_t rows, int64_t columns) {
  return ((rows + kScanTile - 1) / kScanTile) * ((columns + kScanTile - 1) / kScanTile);
}

// A row of a norm lies in the registers of a block: as vectors of 16 bytes where all rows begin at multiples
// of these, else as single elements.
inline constexpr int kNormThreads = 512, kNormVectors = 8, kNormElements = 16;
constexpr int64_t norm_row(int64_t element_bytes, bool vectors) {
  return int64_t{kNormThreads} * (vectors ? kNormVectors * (16 / element_bytes) : kNormElements);
}
// Gated norms hold more rows at once, and long ones as vectors of elements of 16 bits alone.
constexpr int64_t gated_norm_row(int64_t element_bytes, bool vectors) {
  return norm_row(element_bytes, vectors && element_bytes == 2);
}

// Logits of a row whose gradient is made at once, by threads with a few single ones each.
inline constexpr int kLogitThreads = 256, kLogitVectors = 4;
inline constexpr int64_t kLogits = kGridRows * kLogitThreads * kLogitVectors;

// Attention by one thread per score, which takes every number format: a block holds a tile of keys and values
// (or of queries and gradients), and a row of the others for each of its warps. Shared memory in bytes, where
// sums are of `element_bytes`.
inline constexpr int kAttentionTile = 32, kAttentionWarps = 8;
constexpr int64_t attention_memory(int64_t qk_head_dim, int64_t v_head_dim, int64_t element_bytes) {
  const int64_t head_dims = qk_head_dim + v_head_dim;
  return element_bytes * (kAttentionTile * (head_dims + 2) + kAttentionWarps * head_dims);
}

}  // namespace megatron::limits
