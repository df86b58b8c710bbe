#include "megatron/nn/batch.h"

#include <algorithm>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron {

double Batch::label_weight() const {
  if (weights.empty())
    return static_cast<double>(std::count_if(labels.begin(), labels.end(), [](int64_t l) { return l >= 0; }));
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] >= 0) sum += weights[i];
  return sum;
}

void Batch::check() const {
  const size_t tokens = ids.size();
  require(rows > 0 && tokens > 0 && tokens % static_cast<size_t>(rows) == 0,
          "batch: {} tokens are not {} rows of one length", tokens, rows);
  require(labels.size() == tokens, "batch: {} labels for {} tokens", labels.size(), tokens);
  require(weights.empty() || weights.size() == tokens, "batch: {} weights for {} labels", weights.size(),
          tokens);
  require(positions.empty() || positions.size() == tokens, "batch: {} positions for {} tokens",
          positions.size(), tokens);
  for (const std::vector<double>& kind : values)
    require(kind.size() == tokens, "batch: {} values for {} tokens", kind.size(), tokens);
  require(std::all_of(positions.begin(), positions.end(),
                      [&](int64_t p) { return p >= 0 && p < static_cast<int64_t>(tokens); }),
          "batch: positions are not within the {} tokens", tokens);
  const int64_t packed = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(lengths.empty() || packed == static_cast<int64_t>(tokens),
          "batch: packed sequences have {} tokens, but {} rows of {} have {}", packed, rows, length(),
          tokens);
  const auto pixels = extra.find("pixels");
  int64_t patches = 0;
  for (const PatchGrid& grid : image_grids()) patches += grid.patches();
  require((pixels != extra.end() ? pixels->second.size(0) : 0) == patches,
          "batch: its image grids have {} patches, but its pixels others", patches);
}

std::vector<PatchGrid> Batch::image_grids() const {
  const auto found = extra.find("image_grids");
  std::vector<PatchGrid> grids;
  if (found == extra.end()) return grids;
  const auto* numbers = found->second.data<int64_t>();
  for (int64_t i = 0; i < found->second.size(0); ++i, numbers += 3)
    grids.push_back({numbers[0], numbers[1], numbers[2]});
  return grids;
}

std::vector<Batch> batches_of_tokens(std::span<const int64_t> tokens, int64_t size, int64_t length,
                                     std::span<const int64_t> lengths,
                                     std::span<const std::vector<int64_t>> documents, int64_t first) {
  const auto all = static_cast<int64_t>(tokens.size()), each = size * (length + 1);
  std::vector<int64_t> row_lengths(lengths.begin(), lengths.end());
  if (lengths.empty()) row_lengths.assign(each > 0 ? static_cast<size_t>(all / each) : 0, length);
  int64_t needed = 0;
  for (int64_t own : row_lengths) needed += size * (own + 1);
  require(!row_lengths.empty() && needed == all,
          "training step: {} tokens are no whole number of micro-batches of {} sequences of {} + 1", all,
          size, row_lengths.empty() ? length : row_lengths[0]);
  const int64_t rows = static_cast<int64_t>(row_lengths.size()) * size;
  require(documents.empty() || static_cast<int64_t>(documents.size()) == rows,
          "training step: documents are given for {} rows, but there are {}", documents.size(), rows);
  std::vector<Batch> batches;
  auto token = tokens.begin();
  auto document = documents.begin();
  for (int64_t own : row_lengths) {
    Batch& batch = batches.emplace_back();
    batch.rows = size;
    batch.first = first + static_cast<int64_t>(batches.size() - 1) * size;
    for (int64_t row = 0; row < size; ++row, token += own + 1) {
      batch.ids.insert(batch.ids.end(), token, token + own);
      batch.labels.insert(batch.labels.end(), token + 1, token + own + 1);
      if (document == documents.end()) continue;
      batch.lengths.insert(batch.lengths.end(), document->begin(), document->end());
      ++document;
    }
    for (int64_t& id : batch.ids)
      if (id == kIgnoredLabel) id = 0;
  }
  return batches;
}

}  // namespace megatron
