#pragma once

#include <utility>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// The largest of the ranks' values, one by one: what ranks know of at different times, such as a signal,
// becomes the same on all. All ranks of the group call it.
inline std::vector<double> all_reduce_max(RankContext& ctx, const ProcessGroup& group,
                                          std::vector<double> own) {
  if (group.size() == 1) return own;
  Tensor all = ctx.from_vector<double>(own, {static_cast<int64_t>(own.size())});
  group.all_reduce(all, ReduceOp::Max).wait();
  return ctx.to_vector<double>(all);
}

}  // namespace megatron
