#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/nn/unit_map.h"

namespace megatron {

// Which communication of a linear layer runs beside its GEMMs (tp_comm_overlap), in blocks of tokens
// where it must be finished for the GEMM, whole where it need not be.
struct TensorOverlap {
  bool on = false;                  // with sequence parallelism
  bool gather = true;               // blocks of the input while the one held is multiplied
  bool scatter = true;              // blocks of the sum while the next one is multiplied
  bool scatter_data = false;        // the same for the gradient of a gathered input
  bool gather_under_data = true;    // the input again, under the GEMM for its gradient
  bool reduce_under_weight = true;  // the sum of that gradient, under the GEMM for the weight's
  bool aggregate = false;           // a GEMM takes two gathered blocks at once
  int splits = 0;                   // sums are scattered in so many parts, instead of around a ring
};

// The linear layers that --tp-comm-overlap-cfg names; all others are as TensorParallel::overlap says.
struct LayerOverlaps {
  TensorOverlap qkv, proj, fc1, fc2;
};

// How the layers of a model are split over the ranks of a tensor-parallel group.
struct TensorParallel {
  ProcessGroup group = ProcessGroup::self("tp");
  bool sequence_parallel = false;  // between the parallel parts each rank holds its share of the tokens
  TensorOverlap overlap = {};
  LayerOverlaps layer_overlaps = {};
  ProcessGroup key_group = ProcessGroup::self("tp-keys");  // ranks that share one key and value head

  std::vector<int> replica_sizes = {};  // of the groups of all replicas, where these differ; else empty

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  bool splits_tokens() const { return sequence_parallel && size() > 1; }

  // Whether ranks hold unequal parts, and gradients of replicas meet in another layout than weights have.
  bool unequal() const { return !replica_sizes.empty(); }
  int sync() const;  // the size of the smallest replica's group

  // This rank's units of `count`. All is divided here: an Error names `what` where ranks are alike and the
  // units cannot be shared out evenly, or where there are fewer than ranks.
  UnitMap units(std::string_view what, int64_t count) const;
  int64_t count(std::string_view what, int64_t count) const {  // how many of them
    return static_cast<int64_t>(units(what, count).owned().size());
  }
  // A tensor split along `dim`, of which ranks hold whole units, or what is best where `units` is 0. The
  // dimension may be a sequence of parts, each split on its own.
  SplitShard split(std::string_view what, const Shape& shape, int dim, int64_t units = 0,
                   std::span<const int64_t> parts = {}) const;
  // Splits rows up to `padded`, a multiple of size(), where ranks are alike; otherwise units have
  // unit_extent rows of a vocabulary that is rounded up to whole units.
  SplitShard split_vocabulary(std::string_view what, const Shape& shape, int64_t padded) const;
  int64_t vocabulary_unit(int64_t vocabulary) const;

  // Tokens that a rank holds between the parallel parts. Where group sizes differ, the last may be padding.
  int64_t token_rows(int64_t tokens) const {
    return pads_tokens() ? (tokens + size() - 1) / size() : splits_tokens() ? tokens / size() : tokens;
  }
  bool pads_tokens() const { return splits_tokens() && unequal(); }
};

// What each rank of a group holds by `held`, of the same size as this one's, and what each position owns.
SplitShard split_by_rank(const TensorParallel& tp, std::function<ShardSpec(int rank)> held,
                         std::function<ShardSpec(int rank)> owned);

}  // namespace megatron
