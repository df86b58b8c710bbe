#pragma once

#include "megatron/nn/shard_plan.h"

namespace megatron {

// A parameter as the ranks of a tensor-parallel group hold it, and as the first of them, the sync positions,
// own its gradient: every element has one owner.
struct FoldItem {
  std::vector<ShardSpec> held, owned;
  bool summed = false;  // several ranks hold it, each with a part of the gradient
};

// A box of one item on its way between what a rank holds and what a position owns.
struct FoldPart {
  size_t item;
  Box held, owned;  // in the local tensor of each
};

// One message: its parts end to end, each row-major.
struct FoldMessage {
  int holder, owner;
  std::vector<FoldPart> parts;

  int64_t numel() const;
};

// What travels between the ranks of a group so that replicas of different sizes can sum their gradients.
// Messages are ordered by owner, then holder; both ends derive the same. Those from a rank to itself are
// copies.
struct FoldPlan {
  std::vector<FoldMessage> fold;    // gradients to their owners; of `summed` items from every holder
  std::vector<FoldMessage> unfold;  // results to every holder

  static FoldPlan of(std::span<const FoldItem> items);
};

}  // namespace megatron
