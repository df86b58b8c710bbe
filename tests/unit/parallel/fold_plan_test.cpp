#include "megatron/parallel/data/fold_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "megatron/nn/unit_map.h"

// Folding and unfolding by copies of the plan's boxes, without ranks.
namespace megatron {
namespace {

using Local = std::vector<double>;

int64_t flat(const Shape& shape, const Shape& at) {
  int64_t index = 0;
  for (int d = 0; d < shape.rank(); ++d) index = index * shape[d] + at[d];
  return index;
}

template <class Visit>
void for_each_place(const Shape& extent, Visit visit) {
  for (int64_t i = 0; i < extent.numel(); ++i) {
    Shape at = extent;
    int64_t rest = i;
    for (int d = extent.rank() - 1; d >= 0; --d) {
      at[d] = rest % extent[d];
      rest /= extent[d];
    }
    visit(at);
  }
}

Shape plus(Shape a, const Shape& b) {
  for (int d = 0; d < a.rank(); ++d) a[d] += b[d];
  return a;
}

// What a rank with this shard has of a global tensor; padding is zero.
Local part_of(const Local& global, const ShardSpec& shard) {
  Local local(static_cast<size_t>(shard.local_shape.numel()), 0);
  for (const ShardBlock& block : shard.blocks)
    for_each_place(block.extent, [&](const Shape& at) {
      local[static_cast<size_t>(flat(shard.local_shape, plus(block.local_offset, at)))] =
          global[static_cast<size_t>(flat(shard.global_shape, plus(block.global_offset, at)))];
    });
  return local;
}

struct Tensors {
  std::vector<std::vector<Local>> held, owned;  // [item][rank]
};

void move(const FoldItem& item, const FoldPart& part, int holder, int owner, Tensors& all, bool fold) {
  const auto h = static_cast<size_t>(holder), o = static_cast<size_t>(owner);
  for_each_place(part.held.extent, [&](const Shape& at) {
    double& held = all.held[part.item][h]
                           [static_cast<size_t>(flat(item.held[h].local_shape, plus(part.held.offset, at)))];
    double& owned =
        all.owned[part.item][o]
                 [static_cast<size_t>(flat(item.owned[o].local_shape, plus(part.owned.offset, at)))];
    if (!fold)
      held = owned;
    else if (item.summed)
      owned += held;
    else
      owned = held;
  });
}

void apply(const std::vector<FoldItem>& items, const std::vector<FoldMessage>& messages, Tensors& all,
           bool fold) {
  for (const FoldMessage& message : messages)
    for (const FoldPart& part : message.parts)
      move(items[part.item], part, message.holder, message.owner, all, fold);
}

FoldItem split_item(const Shape& shape, int dim, const std::vector<UnitBlock>& blocks, int64_t units,
                    int size, int sync) {
  FoldItem item;
  for (int i = 0; i < size; ++i)
    item.held.push_back(unit_shard(shape, dim, blocks, UnitMap::folded(units, i, size, sync)));
  for (int i = 0; i < sync; ++i)
    item.owned.push_back(unit_shard(shape, dim, blocks, UnitMap::even(units, i, sync)));
  return item;
}

FoldItem replicated(const Shape& shape, int owner, int size, int sync, bool summed) {
  FoldItem item{.held = std::vector<ShardSpec>(static_cast<size_t>(size), ShardSpec::whole(shape)),
                .owned = {},
                .summed = summed};
  for (int i = 0; i < sync; ++i)
    item.owned.push_back(i == owner ? ShardSpec::whole(shape) : ShardSpec{shape, {0}, {}});
  return item;
}

// fc1 gated, fc2, a vocabulary of 50 in units of 4, a norm of each kind.
std::vector<FoldItem> model_items(int size, int sync) {
  return {split_item({96, 3}, 0, {{0, 2}, {48, 2}}, 24, size, sync),
          split_item({3, 48}, 1, {{0, 2}}, 24, size, sync), split_item({50, 3}, 0, {{0, 4}}, 13, size, sync),
          replicated({5}, 0, size, sync, false), replicated({5}, sync - 1, size, sync, true)};
}

Tensors empty_tensors(const std::vector<FoldItem>& items) {
  Tensors all;
  for (const FoldItem& item : items) {
    auto& held = all.held.emplace_back();
    auto& owned = all.owned.emplace_back();
    for (const ShardSpec& shard : item.held)
      held.emplace_back(static_cast<size_t>(shard.local_shape.numel()), 0);
    for (const ShardSpec& shard : item.owned)
      owned.emplace_back(static_cast<size_t>(shard.local_shape.numel()), 0);
  }
  return all;
}

// Invariants I3 and I4.
TEST(FoldPlan, OwnersGetWhatAReducedRankHolds) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> value(-1, 1);
  for (int size = 1; size <= 9; ++size)
    for (int sync = 1; sync <= size; ++sync) {
      const std::vector<FoldItem> items = model_items(size, sync);
      const FoldPlan plan = FoldPlan::of(items);
      Tensors all = empty_tensors(items);
      std::vector<Local> globals;
      for (size_t i = 0; i < items.size(); ++i) {
        Local& global = globals.emplace_back(static_cast<size_t>(items[i].held[0].global_shape.numel()));
        for (double& x : global) x = value(random);
        for (size_t rank = 0; rank < items[i].held.size(); ++rank) {
          all.held[i][rank] = part_of(global, items[i].held[rank]);
          // Of what several hold, one has the gradient and the others zeros.
          if (items[i].summed && rank + 1 != items[i].held.size())
            std::fill(all.held[i][rank].begin(), all.held[i][rank].end(), 0);
        }
      }
      const Tensors before = all;
      apply(items, plan.fold, all, true);
      for (size_t i = 0; i < items.size(); ++i)
        for (size_t rank = 0; rank < items[i].owned.size(); ++rank)
          ASSERT_EQ(all.owned[i][rank], part_of(globals[i], items[i].owned[rank]))
              << "item " << i << " of " << size << "/" << sync;
      apply(items, plan.unfold, all, false);
      for (size_t i = 0; i < items.size(); ++i)
        for (size_t rank = 0; rank < items[i].held.size(); ++rank)
          ASSERT_EQ(all.held[i][rank],
                    items[i].summed ? part_of(globals[i], items[i].held[rank]) : before.held[i][rank]);
    }
}

// Invariant I13 of one bucket: an extra sends its part, cores receive what they miss.
TEST(FoldPlan, MessagesAreAsLargeAsTheyMustBe) {
  const int size = 8, sync = 6;
  const std::vector<FoldItem> items = {split_item({96, 4}, 0, {{0, 2}, {48, 2}}, 24, size, sync),
                                       split_item({4, 48}, 1, {{0, 2}}, 24, size, sync)};
  const FoldPlan plan = FoldPlan::of(items);
  const int64_t all = 96 * 4 + 4 * 48;
  std::vector<int64_t> sent(size, 0), received(size, 0);
  size_t messages = 0;
  for (const FoldMessage& message : plan.fold) {
    if (message.holder == message.owner) continue;
    ++messages;
    sent[static_cast<size_t>(message.holder)] += message.numel();
    received[static_cast<size_t>(message.owner)] += message.numel();
    EXPECT_EQ(message.numel(), 24);
  }
  EXPECT_LE(messages, static_cast<size_t>(size - 1));
  for (int i = 0; i < size; ++i) {
    EXPECT_EQ(sent[static_cast<size_t>(i)], i < sync ? 0 : all / size);
    EXPECT_EQ(received[static_cast<size_t>(i)], i < sync ? all * (size - sync) / (size * sync) : 0);
  }
}

// The worked example: unit 3 of rank 6 goes to position 0.
TEST(FoldPlan, PlacesOfTheWorkedExample) {
  const std::vector<FoldItem> items = {split_item({4, 48}, 1, {{0, 2}}, 24, 8, 6),
                                       split_item({96, 4}, 0, {{0, 2}, {48, 2}}, 24, 8, 6)};
  const FoldPlan plan = FoldPlan::of(items);
  for (const FoldMessage& message : plan.fold) {
    if (message.holder != 6 || message.owner != 0) continue;
    ASSERT_EQ(message.parts.size(), 3U);
    EXPECT_EQ(message.parts[0].held, (Box{{0, 0}, {4, 2}}));
    EXPECT_EQ(message.parts[0].owned, (Box{{0, 6}, {4, 2}}));
    EXPECT_EQ(message.parts[1].held, (Box{{0, 0}, {2, 4}}));
    EXPECT_EQ(message.parts[1].owned, (Box{{6, 0}, {2, 4}}));
    EXPECT_EQ(message.parts[2].held, (Box{{6, 0}, {2, 4}}));
    EXPECT_EQ(message.parts[2].owned, (Box{{14, 0}, {2, 4}}));
    return;
  }
  FAIL() << "no message from 6 to 0";
}

// Keys of five groups that ranks of eight have parts of the query heads of: the example of split groups.
// Several ranks hold a group, each with a part of its gradient; one owner, which may hold none of it, gets
// the sum.
TEST(FoldPlan, GroupsThatSeveralRanksHoldAreSummed) {
  const std::vector<std::vector<int64_t>> held = {{0}, {1}, {2}, {2, 3}, {3}, {4}, {0, 1}, {4}};
  constexpr int64_t kRows = 2, kGroups = 5;
  const Shape whole = {kGroups * kRows, 3};
  const auto shard = [&](const std::vector<int64_t>& groups) {
    std::vector<ShardSpec::Range> ranges;
    for (const int64_t group : groups) ranges.push_back({group * kRows, (group + 1) * kRows});
    if (ranges.empty()) return ShardSpec{whole, {0, 3}, {}};
    return ShardSpec::ranges(whole, 0, ranges);
  };
  FoldItem item{.held = {}, .owned = {}, .summed = true};
  for (const auto& groups : held) item.held.push_back(shard(groups));
  for (int64_t position = 0; position < 6; ++position)
    item.owned.push_back(shard(position < kGroups ? std::vector<int64_t>{position} : std::vector<int64_t>{}));
  const std::vector<FoldItem> items = {item};
  const FoldPlan plan = FoldPlan::of(items);
  Tensors all = empty_tensors(items);
  Local sums(static_cast<size_t>(whole.numel()), 0);
  std::mt19937 random(5);
  for (size_t rank = 0; rank < held.size(); ++rank) {
    size_t at = 0;
    for (const int64_t group : held[rank])
      for (int64_t i = 0; i < kRows * 3; ++i) {
        const double value = static_cast<double>(random() % 1000);  // whole numbers: any order, one sum
        all.held[0][rank][at++] = value;
        sums[static_cast<size_t>(group * kRows * 3 + i)] += value;
      }
  }
  apply(items, plan.fold, all, true);
  for (size_t position = 0; position < 6; ++position)
    EXPECT_EQ(all.owned[0][position], part_of(sums, item.owned[position])) << position;
  apply(items, plan.unfold, all, false);
  for (size_t rank = 0; rank < held.size(); ++rank)
    EXPECT_EQ(all.held[0][rank], part_of(sums, item.held[rank])) << rank;
}

TEST(FoldPlan, EqualCopiesAreNotSent) {
  for (const bool summed : {false, true}) {
    const FoldPlan plan = FoldPlan::of(std::vector<FoldItem>{replicated({5}, 1, 4, 2, summed)});
    EXPECT_EQ(plan.fold.size(), summed ? 4U : 1U);
    EXPECT_EQ(plan.unfold.size(), 4U);
  }
}

}  // namespace
}  // namespace megatron
