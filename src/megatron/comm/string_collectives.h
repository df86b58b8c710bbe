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

// texts[i] goes to rank i; what comes is in the order of the ranks that sent it.
std::vector<std::string> all_to_all_strings(const ProcessGroup& group, const std::vector<std::string>& texts,
                                            CallSite where = CallSite::current());
// Returns the strings of all ranks on the root, an empty list elsewhere.
std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& own, int root,
                                        CallSite where = CallSite::current());

}  // namespace megatron
