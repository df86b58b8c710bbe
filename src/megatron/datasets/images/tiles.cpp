#include "megatron/datasets/images/tiles.h"

#include <algorithm>
#include <cmath>

namespace megatron {
namespace {

using Grid = std::array<int64_t, 2>;

// By their number of tiles, those of equally many by their columns, so that every machine chooses alike.
std::vector<Grid> grids_up_to(int64_t most) {
  std::vector<Grid> grids;
  for (int64_t columns = 1; columns <= most; ++columns)
    for (int64_t rows = 1; columns * rows <= most; ++rows) grids.push_back({columns, rows});
  std::stable_sort(grids.begin(), grids.end(),
                   [](const Grid& a, const Grid& b) { return a[0] * a[1] < b[0] * b[1]; });
  return grids;
}

double ratio_of(const Grid& grid) { return static_cast<double>(grid[0]) / static_cast<double>(grid[1]); }

}  // namespace

Grid tile_grid(int64_t width, int64_t height, const TileOptions& options) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height),
               area = static_cast<double>(width) * static_cast<double>(height);
  const auto tile = static_cast<double>(options.size * options.size);
  Grid best{1, 1};
  double nearest = INFINITY, largest = -INFINITY;
  for (const Grid& grid : grids_up_to(options.most)) {
    const double own = ratio_of(grid), pixels = tile * static_cast<double>(grid[0] * grid[1]);
    if (options.weighs_area) {
      const double worth = std::min(pixels / area, 0.6) * std::min(own / ratio, ratio / own);
      if (worth > largest) largest = worth, best = grid;
      continue;
    }
    const double apart = std::abs(ratio - own);
    if (apart < nearest || (apart == nearest && area > 0.5 * pixels)) best = grid;
    nearest = std::min(nearest, apart);
  }
  return best;
}

std::vector<Image> tiles_of(const Image& image, const TileOptions& options) {
  const auto [columns, rows] = tile_grid(image.width, image.height, options);
  const int64_t size = options.size;
  const Image whole = resized(image, columns * size, rows * size, options.resample);
  std::vector<Image> tiles;
  for (int64_t tile = 0; tile < columns * rows; ++tile) {
    Image cut{.width = size, .height = size, .rgb = {}};
    cut.rgb.resize(static_cast<size_t>(3 * size * size));
    for (int64_t y = 0; y < size; ++y)
      std::copy_n(whole.row(tile / columns * size + y) + 3 * (tile % columns) * size, 3 * size, cut.row(y));
    tiles.push_back(std::move(cut));
  }
  if (options.thumbnail && tiles.size() > 1) tiles.push_back(resized(image, size, size, options.resample));
  return tiles;
}

}  // namespace megatron
