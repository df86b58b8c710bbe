#include "megatron/parallel/pipeline/compute_order.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

int group_of(const PipelineShape& shape) { return shape.group == 0 ? shape.pp : shape.group; }

Step forward(int chunk, int microbatch) { return {StepKind::forward, {}, chunk, microbatch}; }
Step backward(int chunk, int microbatch) {
  return {StepKind::backward, Payload::gradient, chunk, microbatch};
}

std::vector<Step> gpipe_order(int microbatches) {
  std::vector<Step> steps;
  for (int m = 0; m < microbatches; ++m) steps.push_back(forward(0, m));
  for (int m = 0; m < microbatches; ++m) steps.push_back(backward(0, m));
  return steps;
}

// The V: micro-batches go down chunk 0 of ranks 0…p-1 and back up chunk 1. A rank near the tip has little to
// wait for and soon alternates; rank 0 first fills the pipeline with 2p-1 forwards. Written for at least 2p-1
// micro-batches: with fewer, the steps of those that do not exist fall out.
class VOrder {
 public:
  VOrder(int pp, int rank, int microbatches)
      : real_(microbatches), count_(std::max(microbatches, 2 * pp - 1)) {
    for (int i = 0; i < 2 * (pp - rank) - 1; ++i) add_forward(0);
    for (int i = 0; i < rank; ++i) {
      add_forward(1);
      add_forward(0);
    }
    for (int i = 0; i < pp - rank; ++i) {
      add_forward(1);
      add_backward(1);
    }
    while (forwards_[1] < count_) {
      if (forwards_[0] < count_) add_forward(0);
      add_backward(0);
      add_forward(1);
      add_backward(1);
    }
    while (backwards_[0] < count_) {
      add_backward(0);
      if (backwards_[1] < count_) add_backward(1);
    }
  }

  std::vector<Step> steps() && { return std::move(steps_); }

 private:
  void add_forward(int chunk) { add(forward(chunk, forwards_[chunk]++)); }
  void add_backward(int chunk) { add(backward(chunk, backwards_[chunk]++)); }
  void add(const Step& step) {
    if (step.microbatch < real_) steps_.push_back(step);
  }

  int real_, count_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::vector<Step> steps_;
};

std::vector<Step> training_order(const PipelineShape& shape, int rank) {
  switch (shape.kind) {
    case PipelineKind::gpipe:
      return gpipe_order(shape.microbatches);
    case PipelineKind::zb_v:
      return VOrder(shape.pp, rank, shape.microbatches).steps();
    case PipelineKind::none:
    case PipelineKind::one_f_one_b:
    case PipelineKind::zb_h1:
    case PipelineKind::interleaved:
      break;
  }
  return one_f_one_b_order(interleave_table(shape.microbatches, shape.vpp, group_of(shape)), shape.vpp,
                           warmup_counts(shape, rank).warmup);
}

std::vector<Step> forward_order(const PipelineShape& shape, int rank) {
  std::vector<Step> steps;
  if (shape.kind == PipelineKind::zb_v) {
    for (const Step& step : VOrder(shape.pp, rank, shape.microbatches).steps())
      if (step.kind == StepKind::forward) steps.push_back(step);
  } else {
    for (auto [microbatch, chunk] : interleave_table(shape.microbatches, shape.vpp, group_of(shape)))
      steps.push_back(forward(chunk, microbatch));
  }
  return steps;
}

}  // namespace

std::vector<TableEntry> interleave_table(int microbatches, int vpp, int group) {
  std::vector<TableEntry> table;
  for (int first = 0; first < microbatches; first += group)
    for (int chunk = 0; chunk < vpp; ++chunk)
      for (int m = first; m < std::min(first + group, microbatches); ++m) table.push_back({m, chunk});
  return table;
}

WarmupCounts warmup_counts(const PipelineShape& shape, int rank) {
  const int after = shape.pp - rank - 1;  // ranks behind this one
  int warmup = after;
  if (shape.pp > 1 && shape.kind == PipelineKind::interleaved)
    warmup = 2 * after + (shape.vpp - 1) * group_of(shape) + (shape.overlap_experts ? 1 : 0);
  const int total = shape.microbatches * shape.vpp;
  const bool all = warmup >= total || shape.forward_only;
  warmup = all ? total : warmup;
  return {total, warmup, total - warmup, all};
}

std::vector<Step> one_f_one_b_order(const std::vector<TableEntry>& table, int vpp, int warmup) {
  const int total = static_cast<int>(table.size());
  std::vector<Step> steps;
  for (int f = 0, b = 0; b < total;) {
    if (f < total) {
      const TableEntry& entry = table[static_cast<size_t>(f++)];
      steps.push_back(forward(entry.chunk, entry.microbatch));
      if (f <= warmup) continue;
    }
    const TableEntry& entry = table[static_cast<size_t>(b++)];
    steps.push_back(backward(vpp - 1 - entry.chunk, entry.microbatch));
  }
  return steps;
}

std::vector<std::vector<Step>> compute_orders(const PipelineShape& shape) {
  std::vector<std::vector<Step>> orders;
  for (int rank = 0; rank < shape.pp; ++rank)
    orders.push_back(shape.forward_only ? forward_order(shape, rank) : training_order(shape, rank));
  return orders;
}

}  // namespace megatron
