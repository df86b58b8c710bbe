#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Bounds what a rank's allocator keeps for later on a CPU. It keeps blocks by size, and no two batches are of
// one size: in the end it would have the most blocks of every size that any step has met. On a GPU an
// allocation that finds no memory takes these blocks, and nothing is done here.
class IdleMemory {
 public:
  IdleMemory(RankContext& ctx, int64_t most) : ctx_(ctx), most_(most) {}

  // A step was taken, or there was nothing to do. Blocks go back where more than `most` bytes lie idle, and
  // all of them where two looks in a row found nothing to do; then also what the heap has no use for, and
  // again while this lasts.
  void look(bool stepped);

 private:
  RankContext& ctx_;
  int64_t most_;
  int64_t steps_ = 0;  // since blocks went back
  int idle_looks_ = 0;
};

}  // namespace megatron
