#pragma once

#include <array>

#include "megatron/datasets/images/resize.h"

namespace megatron {

struct TileOptions {
  int64_t size = 0;        // pixels along a side of a tile
  int64_t most = 1;        // tiles, without the thumbnail
  bool thumbnail = false;  // the whole image behind its tiles, where there are several
  bool weighs_area = false;
  Resample resample = Resample::bicubic;
};

// Columns and rows of tiles: the rectangle of at most `most` of them whose sides' ratio is the nearest to the
// image's; of equally near ones the larger, where the image has more than half of its pixels. `weighs_area`:
// the largest product of how alike the ratios are and how much of the image's area the tiles have, up to
// three fifths.
std::array<int64_t, 2> tile_grid(int64_t width, int64_t height, const TileOptions& options);

// The image, resized to that rectangle, tile by tile in rows.
std::vector<Image> tiles_of(const Image& image, const TileOptions& options);

}  // namespace megatron
