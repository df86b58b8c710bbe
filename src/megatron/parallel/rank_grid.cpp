#include "megatron/parallel/rank_grid.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "megatron/base/error.h"

namespace megatron {
namespace {

[[noreturn]] void reject(const std::string& message) { throw ConfigError("rank grid: " + message); }

std::string describe(const std::vector<GridAxis>& axes) {
  std::vector<std::string> parts;
  for (const GridAxis& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(parts, " "));
}

// The ranks that `axes` (index pairs of size and stride) reach from `base`, first axis fastest.
std::vector<int> enumerate(int base, const std::vector<std::pair<int, int>>& axes) {
  std::vector<int> ranks{base};
  for (auto [size, stride] : axes) {
    const size_t inner = ranks.size();
    for (int i = 1; i < size; ++i)
      for (size_t j = 0; j < inner; ++j) ranks.push_back(ranks[j] + i * stride);
  }
  return ranks;
}

}  // namespace

std::vector<std::string> split_names(std::string_view dashed) {
  std::vector<std::string> names;
  while (true) {
    const size_t dash = dashed.find('-');
    names.emplace_back(dashed.substr(0, dash));
    if (dash == std::string_view::npos) return names;
    dashed.remove_prefix(dash + 1);
  }
}

RankGrid::RankGrid(std::vector<GridAxis> axes, int rank_offset)
    : axes_(std::move(axes)), rank_offset_(rank_offset) {
  int64_t stride = 1;
  for (const GridAxis& axis : axes_) {
    if (axis.size < 1) reject(fmt::format("axis {} has size {}; sizes start at 1", axis.name, axis.size));
    const auto same = [&](const GridAxis& other) { return other.name == axis.name; };
    if (std::count_if(axes_.begin(), axes_.end(), same) > 1)
      reject(fmt::format("axis {} is named twice in {}", axis.name, describe(axes_)));
    strides_.push_back(static_cast<int>(stride));
    stride *= axis.size;
    if (stride > std::numeric_limits<int>::max())
      reject(fmt::format("{} multiply to more ranks than an int can count", describe(axes_)));
  }
}

RankGrid RankGrid::ordered(std::vector<GridAxis> axes, std::string_view order, int rank_offset) {
  std::vector<GridAxis> sequence;
  for (const std::string& name : split_names(order)) {
    const auto found =
        std::find_if(axes.begin(), axes.end(), [&](const GridAxis& a) { return a.name == name; });
    if (found == axes.end())
      reject(
          fmt::format("order {} names \"{}\", which is not an axis left of {}: name each axis once, such as "
                      "tp-cp-ep-dp-pp",
                      order, name, describe(axes)));
    sequence.push_back(*found);
    axes.erase(found);
  }
  for (const GridAxis& axis : axes) {
    if (axis.size != 1)
      reject(fmt::format("order {} leaves out {}, whose size is {}: add it to the order", order, axis.name,
                         axis.size));
    sequence.push_back(axis);
  }
  return RankGrid(std::move(sequence), rank_offset);
}

int RankGrid::size() const { return axes_.empty() ? 1 : strides_.back() * axes_.back().size; }

size_t RankGrid::index_of(std::string_view axis) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return i;
  reject(fmt::format("no axis \"{}\" in {}", axis, describe(axes_)));
}

int RankGrid::coordinate(int rank, std::string_view axis) const {
  const size_t i = index_of(axis);
  return (rank - rank_offset_) / strides_[i] % axes_[i].size;
}

RankLists RankGrid::groups(std::string_view axes) const {
  std::vector<bool> wanted(axes_.size(), false);
  for (const std::string& name : split_names(axes)) wanted[index_of(name)] = true;
  std::vector<std::pair<int, int>> inside, outside;
  for (size_t i = 0; i < axes_.size(); ++i)
    (wanted[i] ? inside : outside).emplace_back(axes_[i].size, strides_[i]);
  RankLists groups;
  for (int base : enumerate(rank_offset_, outside)) groups.push_back(enumerate(base, inside));
  return groups;
}

std::vector<RankLists> hierarchical_groups(const std::vector<int>& ranks, const std::vector<int>& sizes) {
  std::vector<GridAxis> axes;
  for (size_t level = 0; level < sizes.size(); ++level) axes.push_back({std::to_string(level), sizes[level]});
  const RankGrid grid(std::move(axes));
  if (grid.size() != static_cast<int>(ranks.size()))
    reject(fmt::format("level sizes [{}] multiply to {}, but the group has {} ranks", fmt::join(sizes, ","),
                       grid.size(), ranks.size()));
  std::vector<RankLists> levels;
  for (size_t level = 0; level < sizes.size(); ++level) {
    levels.push_back(grid.groups(std::to_string(level)));
    for (auto& group : levels.back())
      for (int& rank : group) rank = ranks[static_cast<size_t>(rank)];
  }
  return levels;
}

}  // namespace megatron
