#pragma once

#include <chrono>

#include "megatron/comm/process_group.h"

namespace megatron {

// Implemented by comm/nccl, or by comm/none in a build without NCCL.
bool nccl_is_built_in();
// NCCL needs a GPU for each rank. Where several have the same one: an error, or `world` moves all memory.
enum class SharedGpus : uint8_t { Refuse, UseWorld };
// The same ranks as `world`, which has to be a group over threads or processes, with NCCL for what is on
// GPUs. Everything else, the meeting of the GPUs too, goes through `world`.
ProcessGroup nccl_group(ProcessGroup world, std::chrono::milliseconds timeout,
                        SharedGpus shared = SharedGpus::Refuse);

}  // namespace megatron
