#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"

namespace megatron {

// The ranks that keep a copy of each rank's share: `factor` - 1 of them, `jump` ranks apart, in other failure
// domains of `jump` ranks. Blocks of factor x jump ranks exchange copies among themselves; where the ranks do
// not make up whole blocks, they go around all ranks. Fewer where there are fewer domains.
std::vector<std::vector<int>> replica_holders(int ranks, int64_t factor, int64_t jump);

// Who keeps copies of what the ranks of a world hold.
struct ReplicaPlaces {
  std::vector<std::vector<int>> holders;  // of each rank's
  int64_t factor = 1, jump = 1;           // with what a jump of 0 has become
  int hosts = 1;

  // `jump` of 0: as many ranks as share a machine. All ranks call it.
  static ReplicaPlaces of(const ProcessGroup& world, int64_t factor, int64_t jump);
  bool has_fewer_copies() const;  // than the factor asks for
};

std::string host_name();

// What another rank has sent to be kept.
struct ReceivedReplica {
  int owner;
  std::string text;
  std::vector<Tensor> tensors;
};

// Sends `text` and `tensors`, on the host, to this rank's holders, and gives what came from those that it
// holds for. `targets` makes the memory for what a text announces. All ranks call it.
std::vector<ReceivedReplica> exchange_replicas(
    const ProcessGroup& world, const ReplicaPlaces& places, const std::string& text,
    std::span<const Tensor> tensors,
    const std::function<std::vector<Tensor>(const std::string& text)>& targets);

}  // namespace megatron
