#pragma once

#include <string>
#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// Why the passes of a step cannot be one CUDA graph, and what to do about it.
struct CaptureObstacle {
  const char *why, *fix;
};
std::vector<CaptureObstacle> capture_obstacles(const Config& config);

// Why local and transformer_engine, which ask for parts of a step, do not capture the whole of it; "": they
// do. Beside what stands against full_iteration these are experts that ranks share: full_iteration has
// buffers for as many tokens as could come, since no shape of a graph may depend on what is routed.
std::string parts_not_captured(const Config& config);

// Whether steps are captured where devices and communicators allow it.
bool captures_steps(const Config& config);

}  // namespace megatron
