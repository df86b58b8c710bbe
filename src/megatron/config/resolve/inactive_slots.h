#pragma once

#include <string>
#include <vector>

#include "megatron/config/schema/parallel_config.h"

namespace megatron {

// Slots of tensor-parallel groups that take no part: those of one replica, of all its context slices and
// stages (-1) or of one of them.
struct InactiveSlotsEntry {
  int64_t dp = 0, cp = -1, pp = -1;
  std::vector<int64_t> slots;
};

// Whether replicas have tensor-parallel groups of different sizes, or of one that is smaller than planned.
bool has_inactive_slots(const ParallelConfig& parallel);

// "1:2,5" (slots 2 and 5 of replica 1) or "1.0.2:3" (of its context slice 0 and stage 2). A ConfigError names
// an entry that is neither.
std::vector<InactiveSlotsEntry> parse_inactive_slots(const std::vector<std::string>& entries);

// What --non-active-ranks, --tp-spares and --num-reduced-tp-dp-ranks say together. With spares, every reduced
// replica idles as many: those with fewer lost slots give up healthy ones, from the highest on.
std::vector<InactiveSlotsEntry> inactive_slots(const ParallelConfig& parallel);

}  // namespace megatron
