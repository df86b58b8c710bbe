#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// How parameters are laid out in flat buckets, whose gradients are reduced together.

struct BucketItem {
  int64_t numel = 0;
  bool alone = false;  // in a bucket of its own: the copies of a tied weight must be split alike
};

struct BucketRules {
  int64_t size = 0;        // a bucket ends with the item that brings it to this size; 0: one bucket
  int shards = 1;          // into which every bucket can be split evenly
  bool large_pad = false;  // whole multiples of 65536, for high bandwidth
};

struct BucketPlan {
  struct Place {
    size_t item;
    int64_t offset;
  };
  std::vector<Place> places;
  int64_t unpadded = 0, numel = 0;
};

// The items in the given order, each at a multiple of 64, so that kernels may read and write it in whole
// vectors behind an item of any size. With several shards a bucket's size is a multiple of lcm(shards, 128).
std::vector<BucketPlan> plan_buckets(std::span<const BucketItem> items, const BucketRules& rules);

}  // namespace megatron
