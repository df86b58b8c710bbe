#pragma once

#include <vector>

#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// The order in which one rank computes, before messages and weight steps are placed.

struct TableEntry {
  int microbatch = 0;
  int chunk = 0;
  friend bool operator==(const TableEntry&, const TableEntry&) = default;
};
// Interleaving: the k-th forward works on entry k; the k-th backward on the same micro-batch, its chunk
// mirrored.
std::vector<TableEntry> interleave_table(int microbatches, int vpp, int group);

struct WarmupCounts {
  int total = 0;      // forwards of this rank
  int warmup = 0;     // of them before the first backward
  int remaining = 0;  // of them paired with a backward
  bool all_warmup = false;
};
WarmupCounts warmup_counts(const PipelineShape& shape, int rank);

// Forwards and whole backwards of 1F1B or interleaving: `warmup` forwards, then pairs, then the backwards
// left.
std::vector<Step> one_f_one_b_order(const std::vector<TableEntry>& table, int vpp, int warmup);

// Every rank's forwards and backwards; weight gradients still inside the backwards.
std::vector<std::vector<Step>> compute_orders(const PipelineShape& shape);

}  // namespace megatron
