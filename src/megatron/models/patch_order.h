#pragma once

#include <array>
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

// Patches of images whose sides are even, so that the four of a square follow each other: the upper two, then
// the lower two; square by square in rows.
std::vector<int64_t> shuffle_order(const std::vector<PatchGrid>& grids);

// Which places of a table of side x side a patch's position is interpolated from, and how much each counts:
// bilinear, by the centres of patches, constant beyond the outermost ones.
struct Neighbours {
  std::array<int64_t, 4> places;
  std::array<double, 4> weights;
};
std::vector<Neighbours> interpolated_places(const PatchGrid& grid, int64_t side);

}  // namespace megatron
