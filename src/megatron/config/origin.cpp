#include "megatron/config/origin.h"

namespace megatron {

const char* source_name(Source source) {
  constexpr const char* names[] = {"default", "derived", "--hf", "recipe", "file", "flag", "override"};
  return names[static_cast<size_t>(source)];
}

std::string show_origin(const Origin& origin) {
  if (origin.where.empty()) return source_name(origin.source);
  const char* separator = origin.source == Source::derived ? ": " : " ";
  return source_name(origin.source) + std::string(separator) + origin.where;
}

}  // namespace megatron
