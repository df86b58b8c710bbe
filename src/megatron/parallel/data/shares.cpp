#include "megatron/parallel/data/shares.h"

#include "megatron/base/error.h"

namespace megatron {

Shares Shares::even(int64_t global_batch, int64_t micro_batch, int replicas) {
  require(micro_batch > 0 && replicas > 0 && global_batch > 0 && global_batch % (micro_batch * replicas) == 0,
          "global batch: {} samples are no whole number of micro-batches of {} on {} replicas", global_batch,
          micro_batch, replicas);
  Shares shares;
  shares.of_replica.resize(static_cast<size_t>(replicas));
  int64_t first = 0;
  for (std::vector<Share>& own : shares.of_replica)
    for (int64_t i = 0; i < global_batch / (micro_batch * replicas); ++i, first += micro_batch)
      own.push_back({first, micro_batch});
  return shares;
}

int64_t Shares::batches() const {
  int64_t count = 0;
  for (const std::vector<Share>& own : of_replica) count += static_cast<int64_t>(own.size());
  return count;
}

int64_t Shares::samples() const {
  int64_t count = 0;
  for (const std::vector<Share>& own : of_replica)
    for (const Share& share : own) count += share.count;
  return count;
}

}  // namespace megatron
