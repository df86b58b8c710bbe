#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// Where more ranks than KV heads share the work: the ranks of `group` hold the fused projection of one query
// group, [tokens, (queries + 2) · channels / ranks] each. Every one gets its own share of the query heads
// and, like the others, the key and the value: [tokens, (heads + 2) · channels]. Backward sums what the ranks
// send back. With `sections` above 1 as many sets of heads follow each other before the key, such as queries
// and their gates, and each is shared out.
Tensor share_keys(RankContext& ctx, const Tensor& part, const ProcessGroup& group, int64_t heads,
                  int64_t channels, int64_t sections = 1);

}  // namespace megatron
