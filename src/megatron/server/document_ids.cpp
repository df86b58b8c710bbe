#include "megatron/server/document_ids.h"

#include <fmt/core.h>

#include <chrono>
#include <random>

namespace megatron {

std::string random_id(const char* prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace megatron
