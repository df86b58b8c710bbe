#include "megatron/config/origin.h"

namespace megatron {

const char* source_name(Source source) {
  switch (source) {
    case Source::builtin:
      return "default";
    case Source::derived:
      return "derived";
    case Source::hf:
      return "--hf";
    case Source::recipe:
      return "recipe";
    case Source::file:
      return "file";
    case Source::flag:
      return "flag";
    case Source::override_value:
      return "override";
  }
  return "";
}

std::string show_origin(const Origin& origin) {
  if (origin.where.empty()) return source_name(origin.source);
  const char* separator = origin.source == Source::derived ? ": " : " ";
  return source_name(origin.source) + std::string(separator) + origin.where;
}

}  // namespace megatron
