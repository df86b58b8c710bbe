#pragma once

#include <functional>
#include <map>

#include "megatron/comm/processes/frame.h"
#include "megatron/comm/processes/process_world.h"

namespace megatron {

// What a collective between processes is made of: phases in which each rank sends parts to the others and
// then combines what came from them. Ranks are those of the group.

inline constexpr uint8_t kMessagePhase = 255;

using SendPart = std::function<void(int to, const void* data, size_t bytes)>;

std::vector<int> awaited_in_first_phase(const CommRequest& request, int rank, int size);
void for_each_part(const CommRequest& request, int rank, int size, const SendPart& send);
size_t expected_bytes(const CommRequest& request, int rank, int from, int size, int phase);
void combine_phase(const CommRequest& request, int rank, int size, int phase,
                   const std::map<int, Frame>& frames);

// A large all-reduce: each rank reduces its share of the elements, then all shares go round.
bool needs_second_phase(const CommRequest& request, int size);
void for_each_second_part(const CommRequest& request, int rank, int size, const SendPart& send);

// The group that this rank is in after a split; null where it is in none.
std::shared_ptr<ProcessGroupState> make_split_group(const ProcessGroupState& parent, uint64_t sequence,
                                                    const CommRequest& request,
                                                    const std::map<int, Frame>& frames);

}  // namespace megatron
