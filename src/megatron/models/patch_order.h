#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

struct PatchGrid;

// Where Qwen's patches stand, in the order of blocks of merge × merge that become one row, and how blocks are
// ordered by windows.
struct PatchOrder {
  std::vector<int64_t> rows, columns;            // of each patch in its frame
  std::vector<int64_t> by_window, back;          // block i of the new order, of the old one
  std::vector<int32_t> frame_ends, window_ends;  // cumulative counts of patches, from 0
};

// `window`: rows and columns of blocks in a window, from the top left of each frame; 0: frames are whole.
PatchOrder patch_order(const std::vector<PatchGrid>& grids, int64_t merge, int64_t window);

// Patches of square images, `side` along each side, so that the four of a square follow each other: the upper
// two, then the lower two; square by square in rows.
std::vector<int64_t> shuffle_order(int64_t images, int64_t side);

}  // namespace megatron
