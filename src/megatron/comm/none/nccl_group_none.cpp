#include "megatron/base/error.h"
#include "megatron/comm/nccl_group.h"

namespace megatron {

bool nccl_is_built_in() { return false; }

ProcessGroup nccl_group(ProcessGroup, std::chrono::milliseconds, SharedGpus) {
  throw ConfigError(
      "this build has no NCCL: build with MEGATRON_CUDA=1 where nccl.h and libnccl are installed, or let the "
      "ranks share one GPU");
}

}  // namespace megatron
