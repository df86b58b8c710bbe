#pragma once

#include "megatron/checkpoint/tensor_source.h"

namespace megatron {

// Writes a checkpoint under `root` with whole tensors spread evenly over `files` files. Uses little memory,
// whatever the size. Returns its path.
std::string write_whole_tensors(const std::string& root, const TensorSource& source, int files);

// Writes a checkpoint again in that form; what it keeps beside its tensors comes along.
std::string reshard_checkpoint(const std::string& path, const std::string& root, int files);

std::vector<std::string> assets_of(const CheckpointIndex& index);  // its files that hold no tensors
std::string read_asset(const std::string& directory, const std::string& name);

}  // namespace megatron
