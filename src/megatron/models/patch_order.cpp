#include "megatron/models/patch_order.h"

#include <algorithm>

#include "megatron/models/vision_tower.h"

namespace megatron {
namespace {

// The blocks of one frame in the order of windows, and how many each window has.
void order_frame(int64_t first, int64_t rows, int64_t columns, int64_t window, int64_t patches_of_block,
                 PatchOrder& order) {
  const int64_t side = window > 0 ? window : std::max(rows, columns);
  for (int64_t top = 0; top < rows; top += side)
    for (int64_t left = 0; left < columns; left += side) {
      int32_t count = 0;
      for (int64_t row = top; row < std::min(rows, top + side); ++row)
        for (int64_t column = left; column < std::min(columns, left + side); ++column, ++count)
          order.by_window.push_back(first + row * columns + column);
      order.window_ends.push_back(order.window_ends.back() + count * static_cast<int32_t>(patches_of_block));
    }
}

}  // namespace

PatchOrder patch_order(const std::vector<PatchGrid>& grids, int64_t merge, int64_t window) {
  PatchOrder order;
  order.frame_ends = order.window_ends = {0};
  int64_t first = 0;
  for (const PatchGrid& grid : grids) {
    const int64_t rows = grid.rows / merge, columns = grid.columns / merge;
    for (int64_t frame = 0; frame < grid.frames; ++frame, first += rows * columns) {
      for (int64_t block = 0; block < rows * columns; ++block)
        for (int64_t cell = 0; cell < merge * merge; ++cell) {
          order.rows.push_back(block / columns * merge + cell / merge);
          order.columns.push_back(block % columns * merge + cell % merge);
        }
      order.frame_ends.push_back(order.frame_ends.back() + static_cast<int32_t>(grid.rows * grid.columns));
      order_frame(first, rows, columns, window, merge * merge, order);
    }
  }
  order.back.resize(order.by_window.size());
  for (size_t i = 0; i < order.by_window.size(); ++i)
    order.back[static_cast<size_t>(order.by_window[i])] = static_cast<int64_t>(i);
  return order;
}

std::vector<int64_t> shuffle_order(const std::vector<PatchGrid>& grids) {
  std::vector<int64_t> order;
  int64_t first = 0;
  for (const PatchGrid& grid : grids) {
    const int64_t cells = grid.columns / 2;
    for (int64_t square = 0; square < grid.frames * grid.rows / 2 * cells; ++square)
      for (int64_t part = 0; part < 4; ++part)
        order.push_back(first + (2 * (square / cells) + part / 2) * grid.columns + 2 * (square % cells) +
                        part % 2);
    first += grid.patches();
  }
  return order;
}

std::vector<Neighbours> interpolated_places(const PatchGrid& grid, int64_t side) {
  struct Along {
    int64_t low, high;
    double above;  // how much `high` counts
  };
  const auto along = [side](int64_t count) {
    std::vector<Along> result;
    for (int64_t i = 0; i < count; ++i) {
      const double centre =
          (static_cast<double>(i) + 0.5) * static_cast<double>(side) / static_cast<double>(count) - 0.5;
      const double at = std::clamp(centre, 0.0, static_cast<double>(side - 1));
      const auto low = static_cast<int64_t>(at);
      result.push_back({low, std::min(low + 1, side - 1), at - static_cast<double>(low)});
    }
    return result;
  };
  const std::vector<Along> rows = along(grid.rows), columns = along(grid.columns);
  std::vector<Neighbours> result;
  for (int64_t frame = 0; frame < grid.frames; ++frame)
    for (const Along& r : rows)
      for (const Along& c : columns)
        result.push_back(
            {{r.low * side + c.low, r.low * side + c.high, r.high * side + c.low, r.high * side + c.high},
             {(1 - r.above) * (1 - c.above), (1 - r.above) * c.above, r.above * (1 - c.above),
              r.above * c.above}});
  return result;
}

}  // namespace megatron
