#pragma once

#include <string>

namespace megatron {

// "FILE.safetensors:KEY", as commands are told of tensors; the key is empty where none is named.
struct FileAndKey {
  std::string file, key;
};

inline FileAndKey file_and_key(const std::string& source) {
  const size_t name = source.rfind(".safetensors:");
  if (name == std::string::npos) return {source, ""};
  const size_t colon = source.find(':', name);
  return {source.substr(0, colon), source.substr(colon + 1)};
}

}  // namespace megatron
