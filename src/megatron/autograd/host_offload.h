#pragma once

#include <memory>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron {

struct OffloadOptions {
  int64_t min_elements = 1 << 20;  // smaller tensors stay
  double fraction = 1;             // of the eligible bytes
  int max_in_flight = 8;           // copies to the host that may be under way before the device waits
  int prefetch = 2;                // tensors fetched back before they are asked for
};

// Saved tensors wait in host memory from forward to backward. On a GPU they travel on a stream of their own,
// through pinned memory, while the device computes; each tensor that comes back brings those that were saved
// just before it in the same forward pass.
class HostOffload final : public SavedTensorPacker {
 public:
  HostOffload(RankContext& ctx, const OffloadOptions& options);
  ~HostOffload() override;

  void start_pass();  // what follows is another forward pass
  void forget();      // a layer ends: what it saved is not saved again, so its memory may go
  std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override;

  MemoryStatistics statistics() const;  // of the host memory

  struct Entry;  // one tensor on the host
  struct State;

 private:
  OffloadOptions options_;
  std::shared_ptr<State> state_;
  std::weak_ptr<Entry> last_;                     // packed in this pass
  std::vector<std::weak_ptr<Entry>> recent_;      // a tensor that several ops of a layer save is copied once
  int64_t eligible_bytes_ = 0, moved_bytes_ = 0;  // in this pass
};

}  // namespace megatron
