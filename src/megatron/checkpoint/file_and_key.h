#pragma once

#include <filesystem>
#include <string>

#include "megatron/base/error.h"

namespace megatron {

// "FILE.safetensors:KEY", as commands are told of tensors; the key is empty where none is named.
struct FileAndKey {
  std::string file, key;
};

// A ConfigError where there is no such file.
inline FileAndKey file_and_key(const std::string& source) {
  FileAndKey found{source, ""};
  if (const size_t name = source.rfind(".safetensors:"); name != std::string::npos) {
    const size_t colon = source.find(':', name);
    found = {source.substr(0, colon), source.substr(colon + 1)};
  }
  if (!std::filesystem::is_regular_file(found.file))
    throw ConfigError(fmt::format(
        "{}: there is no such file; give FILE.safetensors, or FILE.safetensors:KEY for one of its tensors",
        found.file));
  return found;
}

}  // namespace megatron
