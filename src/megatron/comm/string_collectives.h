#pragma once

#include <string>
#include <vector>

#include "megatron/comm/process_group.h"

namespace megatron {

// Texts of any length, through the host. All ranks of the group call these.
std::vector<std::string> all_gather_strings(const ProcessGroup& group, const std::string& own,
                                            CallSite where = CallSite::current());  // of all ranks, on each
std::string broadcast_text(const ProcessGroup& group, std::string text, int root,
                           CallSite where = CallSite::current());

}  // namespace megatron
