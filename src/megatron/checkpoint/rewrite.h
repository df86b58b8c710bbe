#pragma once

#include <string>

namespace megatron {

// Writes a checkpoint again, under `root`, with whole tensors spread evenly over `files` files; what it keeps
// beside its tensors comes along. Uses little memory, whatever the size. Returns the new one's path.
std::string rewrite_checkpoint(const std::string& path, const std::string& root, int files);

}  // namespace megatron
