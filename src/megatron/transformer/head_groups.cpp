#include "megatron/transformer/head_groups.h"

#include <algorithm>

namespace megatron {
namespace {

double worst_load(int64_t units, std::span<const int> sizes) {
  double worst = 1;
  for (int64_t size : sizes)
    worst =
        std::max(worst, static_cast<double>((units + size - 1) / size * size) / static_cast<double>(units));
  return worst;
}

// The rows of the given heads, and of the keys and values of the groups that `has_key` names.
template <class HasKey>
ShardSpec rows_of_heads(const Shape& shape, const UnitMap& heads, int64_t per_group, int64_t head_dim,
                        int64_t groups, int64_t sections, HasKey has_key) {
  std::vector<ShardSpec::Range> ranges;
  const int64_t group_rows = (sections * per_group + 2) * head_dim;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * group_rows;
    for (int64_t section = 0; section < sections; ++section)
      for (int64_t i = 0; i < per_group; ++i) {
        if (heads.slot(group * per_group + i) < 0) continue;
        const int64_t row = begin + (section * per_group + i) * head_dim;
        ranges.push_back({row, row + head_dim});
      }
    const int64_t key = begin + sections * per_group * head_dim;
    if (has_key(group)) ranges.push_back({key, key + 2 * head_dim});
  }
  return ShardSpec::ranges(shape, 0, ranges);
}

}  // namespace

int64_t query_groups(const ModelConfig& config) {
  return config.num_query_groups ? config.num_query_groups : config.num_attention_heads;
}

HeadGroups::HeadGroups(const ModelConfig& config, const TensorParallel& tp)
    : heads_(config.num_attention_heads),
      groups_(query_groups(config)),
      head_dim_(config.kv_channels),
      tp_(tp) {
  if (!tp.unequal()) return;
  const int largest = *std::max_element(tp.replica_sizes.begin(), tp.replica_sizes.end());
  split_groups = groups_ < heads_ && (groups_ < largest || worst_load(groups_, tp.replica_sizes) >
                                                               1.25 * worst_load(heads_, tp.replica_sizes));
  units = split_groups ? heads_ : groups_;
  if (!split_groups) return;
  const UnitMap own = tp.units("attention: heads", heads_);
  int64_t last = -1;
  for (int64_t head : own.owned()) {
    const int64_t group = head / (heads_ / groups_);
    if (group != last) heads_of_group.push_back(0);
    last = group;
    ++heads_of_group.back();
  }
}

SplitShard HeadGroups::split(const Shape& shape, int64_t sections) const {
  const auto rows = [*this, shape, sections](const UnitMap& map, bool owner) {
    const int64_t each = heads_ / groups_;
    return rows_of_heads(shape, map, each, head_dim_, groups_, sections, [&](int64_t group) {
      // The owner of a group's first head owns its key; all that have one of its heads hold it.
      for (int64_t head = group * each; head < (owner ? group * each + 1 : (group + 1) * each); ++head)
        if (map.slot(head) >= 0) return true;
      return false;
    });
  };
  return split_by_rank(
      tp_,
      [rows, heads = heads_, size = tp_.size(), sync = tp_.sync()](int rank) {
        return rows(UnitMap::folded(heads, rank, size, sync), false);
      },
      [rows, heads = heads_, sync = tp_.sync()](int rank) {
        return rows(UnitMap::even(heads, rank, sync), true);
      });
}

}  // namespace megatron
