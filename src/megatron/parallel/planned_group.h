#pragma once

#include <map>
#include <memory>
#include <string>

#include "megatron/comm/process_group.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// What one rank would send over each group; all-reduces and their kin counted as a ring makes them.
struct TrafficLog {
  struct Entry {
    int64_t operations = 0;
    double bytes = 0;  // that leave this rank
    int group_size = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> by_group;  // by group and operation
};

// The world of a division as one of its ranks sees it, in which operations move nothing and are counted: a
// step on the meta device runs against it without the other ranks. ParallelContext makes its groups from it.
ProcessGroup planned_world(const ParallelSizes& sizes, int rank, std::shared_ptr<TrafficLog> log);

}  // namespace megatron
