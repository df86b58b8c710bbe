#include "megatron/datasets/sample_order.h"

#include <map>
#include <mutex>

#include "megatron/base/error.h"
#include "megatron/datasets/random/torch_random.h"

namespace megatron {

// Permutations of the newest epochs: ranks may be a step apart.
struct SampleOrder::Epochs {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<const std::vector<int64_t>>> orders;

  std::shared_ptr<const std::vector<int64_t>> of(int64_t epoch, int64_t size) {
    const std::lock_guard lock(mutex);
    auto& order = orders[epoch];
    if (!order)
      order =
          std::make_shared<const std::vector<int64_t>>(torch_randperm(size, static_cast<uint64_t>(epoch)));
    const auto result = order;
    if (orders.size() > 2)
      orders.erase(orders.begin()->first == epoch ? std::prev(orders.end()) : orders.begin());
    return result;
  }
};

SampleOrder SampleOrder::in_turn(int64_t total) { return SampleOrder(total); }

SampleOrder SampleOrder::cyclic(int64_t total, int64_t micro_batch, int64_t replicas, bool sharded) {
  if (total < micro_batch * replicas)
    throw ConfigError(
        fmt::format("--dataloader-type cyclic: the data has {} samples, a step of {} replicas needs {}; use "
                    "--dataloader-type single",
                    total, replicas, micro_batch * replicas));
  SampleOrder order(total);
  order.micro_batch_ = micro_batch;
  order.replicas_ = replicas;
  order.sharded_ = sharded;
  order.epochs_ = std::make_shared<Epochs>();
  return order;
}

std::vector<std::vector<int64_t>> SampleOrder::of(const StepRequest& request) const {
  std::vector<std::vector<int64_t>> result;
  if (!epochs_) {
    for (const Share& share : request.shares) {
      auto& samples = result.emplace_back();
      for (int64_t i = 0; i < share.count; ++i) samples.push_back(request.consumed + share.first + i);
    }
    return result;
  }
  int64_t own = 0;
  for (const Share& share : request.shares) own += share.count;
  const int64_t replica = own > 0 ? request.shares[0].first / own : 0, step = micro_batch_ * replicas_;
  const int64_t active = total_ - total_ % step;
  const int64_t bucket = total_ / step * micro_batch_, whole = total_ / micro_batch_ * micro_batch_;
  require(replica < replicas_, "cyclic order: replica {} of {}", replica, replicas_);
  for (const Share& share : request.shares) {
    require(share.count == micro_batch_, "cyclic order: a micro-batch of {} samples, expected {}",
            share.count, micro_batch_);
    const int64_t consumed = request.consumed + static_cast<int64_t>(result.size()) * step;
    const int64_t epoch = consumed / active, offset = consumed % active;
    const auto order = epochs_->of(epoch, sharded_ ? bucket : whole);
    auto& samples = result.emplace_back();
    for (int64_t i = 0; i < micro_batch_; ++i) {
      const int64_t at = sharded_ ? offset / replicas_ + i : offset + replica + i * replicas_;
      samples.push_back((sharded_ ? replica * bucket : 0) + (*order)[static_cast<size_t>(at)]);
    }
  }
  return result;
}

}  // namespace megatron
