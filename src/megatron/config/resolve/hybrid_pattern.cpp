#include "megatron/config/resolve/hybrid_pattern.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

void check_symbols(std::string_view part, std::string_view allowed) {
  const size_t wrong = part.find_first_not_of(allowed);
  if (wrong != std::string_view::npos) fail("hybrid pattern: '{}' is not one of {}", part[wrong], allowed);
}

}  // namespace

HybridPattern parse_hybrid_pattern(std::string_view text) {
  HybridPattern pattern;
  std::string_view main = text.substr(0, text.find('/'));
  std::string_view rest = text.substr(main.size());
  check_symbols(main, "MG*+D-E|");
  const bool plain = main.find('*') != std::string_view::npos,
             other = main.find_first_of("D+") != std::string_view::npos;
  require(!plain || !other, "hybrid pattern: * may not stand together with D or +");
  pattern.segments = {0};
  for (const char c : main) {
    if (c == '|') {
      pattern.segments.push_back(0);
      continue;
    }
    pattern.layers += c;
    ++pattern.segments.back();
  }
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    check_symbols(part, "MG*+D-E");
    require(!part.empty(), "hybrid pattern: '/' needs an MTP layer's pattern after it");
    require(pattern.mtp_depths == 0 || part == pattern.mtp_layers,
            "hybrid pattern: all MTP layers must be alike, not {} and {}", pattern.mtp_layers, part);
    pattern.mtp_layers = part;
    ++pattern.mtp_depths;
  }
  return pattern;
}

}  // namespace megatron
