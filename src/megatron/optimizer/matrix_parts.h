#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/nn/parameter_slice.h"

namespace megatron {

// The ranks that have the rest of a matrix.
struct MatrixGroups {
  ProcessGroup tensor = ProcessGroup::self("tensor");  // of its global shape
  ProcessGroup shard = ProcessGroup::self("shard");    // of this rank's own shape, where slices are parts
};

// Which dimension of its matrices other tensor-parallel ranks have the rest of; -1: none.
int split_dimension(const Parameter& parameter);

// A tensor of this rank's local shape, from the slices of the ranks of `shard` that have a part of it.
Tensor own_matrix(RankContext& ctx, const ParameterSlice& slice, const ProcessGroup& shard,
                  const Tensor& part);
// The matrix of a parameter's global shape, of experts those that are here, from the local shapes of the
// ranks of `tensor`.
Tensor whole_matrix(RankContext& ctx, const Parameter& parameter, const ProcessGroup& tensor,
                    const Tensor& own);
// The other way: this rank's blocks of `whole` into `own`, of the local shape.
void take_blocks(RankContext& ctx, const Parameter& parameter, const Tensor& whole, const Tensor& own);
// The part that a slice has of a tensor of the local shape, in the slice's shape.
Tensor part_of(const ParameterSlice& slice, const Tensor& own);

}  // namespace megatron
