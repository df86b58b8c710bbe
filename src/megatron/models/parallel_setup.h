#pragma once

#include "megatron/config/config.h"
#include "megatron/config/resolve/tp_overlap_file.h"
#include "megatron/parallel/data/shares.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// How a configuration divides a world of this many ranks.
ParallelSizes parallel_sizes(const Config& config, int64_t world);

// How one rank's blocks are split, given the groups that it is in.
ModelParallel model_parallel(const Config& config, const ParallelContext& parallel);

// How a linear layer overlaps: what the file says of it goes before `base`. Its input is gathered, or its
// output summed.
TensorOverlap layer_overlap(TensorOverlap base, const TpOverlapFile::Linear& file, bool gathers_input);

// How fast replicas of these tensor-parallel sizes go through micro-batches, beside each other: by the work
// of their fullest rank, which grows in steps where heads do not divide.
std::vector<int> replica_speeds(const ModelConfig& model, const std::vector<int>& tp_sizes);

// How replicas of these sizes share a batch.
Shares unequal_shares(const Config& config, const std::vector<int>& tp_sizes, int64_t batch,
                      int64_t micro_batch);

// How replicas share a batch: evenly, or by their speeds where their sizes differ.
Shares batch_shares(const Config& config, const ParallelContext& parallel, int64_t batch);
Shares batch_shares(const Config& config, const ParallelContext& parallel, int64_t batch,
                    int64_t micro_batch);

}  // namespace megatron
