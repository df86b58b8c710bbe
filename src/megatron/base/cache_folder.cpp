#include "megatron/base/cache_folder.h"

#include <cstdlib>

namespace megatron {

std::string cache_folder() {
  if (const char* own = std::getenv("MEGATRON_CACHE")) return own;
  auto below = [](const char* variable, const char* rest) {
    const char* value = std::getenv(variable);
    return value && *value ? std::string(value) + rest : std::string();
  };
  std::string shared = below("XDG_CACHE_HOME", "/megatron");
  return shared.empty() ? below("HOME", "/.cache/megatron") : shared;
}

}  // namespace megatron
