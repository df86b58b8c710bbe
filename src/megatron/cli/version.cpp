#include "megatron/cli/version.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron {

std::string describe(const BuildInfo& info) {
  std::string text = fmt::format("megatron {}\n", info.version);
  size_t width = 8;
  for (const BuildOption& option : info.options) width = std::max(width, option.name.size());
  const auto line = [&](std::string_view name, std::string_view value) {
    text += fmt::format("  {:<{}}  {}\n", name, width, value);
  };
  if (!info.commit.empty()) line("commit", info.commit);
  line("compiler", info.compiler);
  line("build", info.build_type);
  for (const BuildOption& option : info.options) line(option.name, option.value);
  return text;
}

}  // namespace megatron
