#include <gtest/gtest.h>

#include <numeric>

#include "megatron/base/error.h"
#include "megatron/datasets/sft/first_fit.h"
#include "megatron/datasets/sft/packed_sequences.h"

namespace megatron {
namespace {

using Bins = std::vector<std::vector<int64_t>>;

// First fit by looking at every bin.
Bins slow_first_fit(const std::vector<int64_t>& lengths, int64_t capacity) {
  Bins bins;
  std::vector<int64_t> rooms;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > capacity) continue;
    size_t bin = 0;
    while (bin < rooms.size() && rooms[bin] < lengths[i]) ++bin;
    if (bin == rooms.size()) rooms.push_back(capacity), bins.emplace_back();
    rooms[bin] -= lengths[i];
    bins[bin].push_back(static_cast<int64_t>(i));
  }
  return bins;
}

TEST(FirstFit, EqualsTheSearchThroughAllBins) {
  uint64_t state = 1;
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths(static_cast<size_t>(round) * 7);
    for (int64_t& length : lengths)
      length =
          static_cast<int64_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56) % 130;
    EXPECT_EQ(first_fit(lengths, 120), slow_first_fit(lengths, 120)) << round;
  }
  EXPECT_EQ(first_fit_decreasing(std::vector<int64_t>{3, 9, 5, 1, 6}, 10), (Bins{{1, 3}, {4, 0}, {2}}));
  EXPECT_THROW(first_fit(std::vector<int64_t>{1}, 0), Error);
}

TEST(PackedSequences, KeepsBridgesFormat) {
  const SftTokens a{.ids = {1, 2, 3}, .learned = {0, 1, 1}}, b{.ids = {4, 5}, .learned = {0, 1}};
  const std::vector<const SftTokens*> both{&a, &b};
  const PackedRow row = pack_row(both);
  EXPECT_EQ(row.input_ids, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(row.seq_start_id, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(row.loss_mask, (std::vector<uint8_t>{1, 1, 0, 1, 0}));
  const PackedSample sample = collate_packed(row, 5, 9);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{1, 2, 4, 9, 9}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{2, 3, 5, 9, 9}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 1, 1, 0, 0}));
  EXPECT_EQ(sample.positions, (std::vector<int64_t>{0, 1, 0, 0, 1}));
  EXPECT_EQ(sample.cu_seqlens, (std::vector<int32_t>{0, 2, 3, 5}));
  EXPECT_EQ(sample.max_seqlen, 2);
  EXPECT_EQ(collate_packed(row, 3, 9).cu_seqlens, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_THROW(collate_packed(row, 2, 9), Error);
  PackedRow broken = row;
  broken.seq_start_id = {0, 9};
  EXPECT_THROW(collate_packed(broken, 5, 9), Error);
}

TEST(PackedSequences, PadsAndMeasures) {
  SftTokens tokens{.ids = {1, 2, 3}, .learned = {0, 1, 1}};
  pad_to_multiple(tokens, 4, 7);
  EXPECT_EQ(tokens.ids, (std::vector<int64_t>{1, 2, 3, 7, 7}));
  EXPECT_EQ(tokens.learned, (std::vector<uint8_t>{0, 1, 1, 0, 0}));
  const Bins bins{{0, 1}, {2}};
  const std::vector<int64_t> lengths{4, 3, 6};
  EXPECT_EQ(
      packing_metadata(bins, lengths, 8).dump(),
      R"({"dataset_max_seqlen":6,"max_samples_per_bin":2,"packing_factor":1.5,"packing_efficiency":81.25,"pack_size":8,"min_packed_seqlen":6})");
}

}  // namespace
}  // namespace megatron
