#pragma once

#include <string>

namespace megatron {

// Where programs keep what later runs can use: $MEGATRON_CACHE, or $XDG_CACHE_HOME/megatron, or
// ~/.cache/megatron. "", which is nowhere: where MEGATRON_CACHE is set to nothing, or none of them is known.
std::string cache_folder();

}  // namespace megatron
