#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron {

struct BuildOption {
  std::string_view name;   // "CUDA"
  std::string_view value;  // its version, or "left out"
};

struct BuildInfo {
  std::string_view version;
  std::string_view commit;  // "" outside a git checkout
  std::string_view compiler;
  std::string_view build_type;
  std::span<const BuildOption> options;
};

// Written by the build (cmake/MegatronVersion.cmake), so that a new commit compiles one small file.
const BuildInfo& build_info();

std::string describe(const BuildInfo& info);  // what `megatron --version` prints

}  // namespace megatron
