#pragma once

#include <vector>

#include "megatron/comm/process_group.h"

namespace megatron {

// How the ranks of a context-parallel group come by each other's keys and values.
enum class ContextKind {
  p2p,         // a ring: blocks travel from rank to rank while the held one is computed
  all_gather,  // all blocks first
  a2a,         // tokens for heads: each rank computes whole sequences of some heads (Ulysses)
  a2a_p2p,     // tokens for heads in the inner level, a ring over the outer
};
ContextKind context_kind(const std::string& name);  // as cp_comm_type spells it

// How the tokens of each sequence are split over the ranks of a context-parallel group.
struct ContextParallel {
  ProcessGroup group = ProcessGroup::self("cp");
  ProcessGroup inner = ProcessGroup::self("cp-inner"), outer = ProcessGroup::self("cp-outer");  // of a2a_p2p
  std::vector<ContextKind> kinds = {ContextKind::p2p};  // one for all layers, or one each

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  ContextKind kind(int64_t layer) const {
    return kinds.size() == 1 ? kinds[0] : kinds.at(static_cast<size_t>(layer));
  }
};

}  // namespace megatron
