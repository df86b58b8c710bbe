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

Shares Shares::weighted(int64_t global_batch, int64_t micro_batch, const std::vector<int>& weights,
                        int64_t multiple) {
  const auto replicas = static_cast<int64_t>(weights.size());
  const int64_t round = micro_batch * multiple;
  require(round > 0 && replicas > 0 && global_batch % round == 0 && global_batch / round >= replicas,
          "global batch: {} samples are no whole number of rounds of {} micro-batches of {}, one at least "
          "for each "
          "of {} replicas",
          global_batch, multiple, micro_batch, replicas);
  std::vector<int64_t> rounds(weights.size(), 1);
  for (int64_t left = global_batch / round - replicas; left > 0; --left) {
    size_t next = 0;  // (rounds + 1) / weight is the least
    for (size_t i = 1; i < weights.size(); ++i)
      if ((rounds[i] + 1) * weights[next] < (rounds[next] + 1) * weights[i]) next = i;
    ++rounds[next];
  }
  Shares shares;
  int64_t first = 0;
  for (int64_t own : rounds) {
    std::vector<Share>& list = shares.of_replica.emplace_back();
    for (int64_t i = 0; i < own * multiple; ++i, first += micro_batch) list.push_back({first, micro_batch});
  }
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
