#include "megatron/training/log/memory_report.h"

#include <algorithm>

#include "megatron/models/parallel_setup.h"

namespace megatron {

std::string memory_report(RunView& view) {
  constexpr int64_t kFigures = 4;
  constexpr double kMib = 1 << 20;
  const MemoryStatistics memory = view.ctx.allocator->statistics();
  std::vector<double> own;
  for (const size_t bytes : {memory.total.current, memory.total.peak, memory.reserved, memory.peak_reserved})
    own.push_back(static_cast<double>(bytes) / kMib);
  const Tensor mine = view.ctx.from_vector<double>(own, {kFigures}),
               all = view.ctx.empty({kFigures * view.world.size()}, DType::F64);
  view.world.all_gather(mine, all).wait();
  const auto figures = view.ctx.to_vector<double>(all);

  std::vector<int> ranks;
  for (const GroupRanks& group : view.trainer.parallel().lists())
    if (group.axis == Axis::dp) ranks.push_back(group.ranks[0]);
  std::sort(ranks.begin(), ranks.end());
  std::string lines;
  for (const int rank : ranks) {
    const std::vector<int>& world = view.world.world_ranks();
    const auto place = std::find(world.begin(), world.end(), rank) - world.begin();
    const double* of_rank = &figures[static_cast<size_t>(place * kFigures)];
    lines += fmt::format(
        "[Rank {}] (after {} iterations) memory (MB) | allocated: {:.2f} | max allocated: {:.2f} | "
        "reserved: {:.2f} | max reserved: {:.2f}\n",
        rank, view.state.iteration, of_rank[0], of_rank[1], of_rank[2], of_rank[3]);
  }
  return lines;
}

}  // namespace megatron
