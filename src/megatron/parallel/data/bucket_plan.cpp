#include "megatron/parallel/data/bucket_plan.h"

#include <numeric>

namespace megatron {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

std::vector<BucketPlan> plan_buckets(std::span<const BucketItem> items, const BucketRules& rules) {
  bool split = rules.shards > 1;
  const int64_t alignment = 64;
  int64_t multiple = 1;
  if (split) multiple = std::lcm<int64_t>(rules.shards, rules.large_pad ? 65536 : 128);
  std::vector<BucketPlan> buckets;
  BucketPlan open;
  auto close = [&] {
    if (open.places.empty()) return;
    open.numel = round_up(open.unpadded, multiple);
    buckets.push_back(std::move(open));
    open = {};
  };
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].alone) close();
    int64_t offset = round_up(open.unpadded, alignment);
    open.places.push_back({i, offset});
    open.unpadded = offset + items[i].numel;
    if (items[i].alone || (rules.size > 0 && open.unpadded >= rules.size)) close();
  }
  close();
  return buckets;
}

}  // namespace megatron
