#pragma once

#include <memory>
#include <vector>

#include "megatron/datasets/batch_source.h"

namespace megatron {

// Which samples of a dataset a step reads. In turn, the n-th sample that training consumes is sample n. In
// cyclic order, epochs are shuffled by their number without end, as Megatron-LM's random sampler does: then
// the order depends on the micro-batch and the number of replicas. Safe to share between threads.
class SampleOrder {
 public:
  static SampleOrder in_turn(int64_t total);
  // With `sharded`, every replica keeps to a part of its own. A ConfigError where a step of all replicas has
  // more samples than there are.
  static SampleOrder cyclic(int64_t total, int64_t micro_batch, int64_t replicas, bool sharded);

  // Sample numbers of each of the request's micro-batches.
  std::vector<std::vector<int64_t>> of(const StepRequest& request) const;
  int64_t samples() const { return epochs_ ? -1 : total_; }  // -1: endless

 private:
  struct Epochs;
  explicit SampleOrder(int64_t total) : total_(total) {}

  int64_t total_, micro_batch_ = 0, replicas_ = 1;
  bool sharded_ = false;
  std::shared_ptr<Epochs> epochs_;  // null: in turn
};

// The micro-batches of a request: fill(batch, numbers) adds the samples with these numbers to a batch that
// knows its place in the global batch.
template <class Fill>
std::vector<Batch> fill_batches(const SampleOrder& order, const StepRequest& request, Fill&& fill) {
  std::vector<Batch> batches;
  auto share = request.shares.begin();
  for (const std::vector<int64_t>& numbers : order.of(request)) {
    Batch& batch = batches.emplace_back();
    batch.rows = share->count;
    batch.first = (share++)->first;
    fill(batch, numbers);
  }
  return batches;
}

}  // namespace megatron
