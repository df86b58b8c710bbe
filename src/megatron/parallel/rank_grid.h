#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Each inner list is one group; a rank's place in its list is its rank in the group.
using RankLists = std::vector<std::vector<int>>;

struct GridAxis {
  std::string name;
  int size = 1;
};

// Consecutive ranks as a grid of named axes; the first axis varies fastest.
class RankGrid {
 public:
  explicit RankGrid(std::vector<GridAxis> axes, int rank_offset = 0);

  // Axes in the sequence of a dash-separated order ("tp-cp-ep-dp-pp"). An axis that the order leaves out goes
  // to the end when its size is 1 and is refused otherwise.
  static RankGrid ordered(std::vector<GridAxis> axes, std::string_view order, int rank_offset = 0);

  const std::vector<GridAxis>& axes() const { return axes_; }
  int size() const;
  int rank_offset() const { return rank_offset_; }
  int coordinate(int rank, std::string_view axis) const;

  // The groups that span the named axes, "dp-cp" say: the sequence of the names does not matter.
  RankLists groups(std::string_view axes) const;

 private:
  size_t index_of(std::string_view axis) const;

  std::vector<GridAxis> axes_;
  std::vector<int> strides_;
  int rank_offset_;
};

std::vector<std::string> split_names(std::string_view dashed);

// Splits one group into levels: with sizes [2,4] ranks 0..7 give {0,1}{2,3}{4,5}{6,7} and {0,2,4,6}{1,3,5,7}.
std::vector<RankLists> hierarchical_groups(const std::vector<int>& ranks, const std::vector<int>& sizes);

}  // namespace megatron
