#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

int64_t query_groups(const ModelConfig& config);  // as many as heads where none are given

// How tensor-parallel ranks of unequal replicas share the heads of attention. Units are query groups where
// there are enough for an even load. Otherwise they are heads, and every rank that has one of a group holds
// the group's key and value too, with a part of their gradients.
struct HeadGroups {
  HeadGroups(const ModelConfig& config, const TensorParallel& tp);

  int64_t units = 0;  // groups or heads; 0: all replicas are alike
  bool split_groups = false;

  // Where groups are split, the heads of each group that this rank has any of.
  std::vector<int64_t> heads_of_group;

  // The rows of the fused projection [out, ...] or [out]: of each group its queries, `sections` times
  // (queries and gates), a key and a value.
  SplitShard split(const Shape& shape, int64_t sections) const;

 private:
  int64_t heads_, groups_, head_dim_;
  TensorParallel tp_;
};

}  // namespace megatron
