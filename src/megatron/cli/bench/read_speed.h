#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Reads plain memory with all threads of a rank, as fast as loads allow.
class ReadSpeed {
 public:
  // Of `bytes` in a pass, out of a buffer that is no larger and does not fit into caches.
  ReadSpeed(RankContext& ctx, double bytes);
  double seconds();  // of one pass, now

 private:
  CpuPool& pool_;
  Tensor buffer_;
  int64_t chunks_ = 0;  // of a pass
};

}  // namespace megatron
