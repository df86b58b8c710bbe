#include "megatron/device/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace megatron {

double system_memory() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  // Control groups keep the limit here in versions 2 and 1; "max" means that there is none.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace megatron
