#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"

namespace megatron {

// Runs a part of some work on every rank and gathers what each returns. Where it fails on some rank, all
// ranks throw the same error, so that none is left waiting and none believes in what is not there. The
// message is
// "`failure`:" and a line for each rank that failed; where `failure` is empty, the first rank's own text. It
// is a ConfigError where every failure was one. A CommError is passed on at once.
std::vector<std::string> agree(const ProcessGroup& world, std::string_view failure,
                               const std::function<std::string()>& work);

}  // namespace megatron
