#include "megatron/base/writable_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "megatron/base/error.h"

namespace megatron {

void require_folder(std::string_view flag, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (error)
    throw ConfigError(fmt::format("{}: the folder {} cannot be written: {}", flag, folder, error.message()));
}

void require_file_place(std::string_view flag, const std::string& file) {
  const std::filesystem::path path = std::filesystem::absolute(file);
  if (path.filename().empty() || std::filesystem::is_directory(path))
    throw ConfigError(fmt::format("{}: {} is a folder; name a file in it", flag, file));
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path))
    throw ConfigError(fmt::format("{}: {} is a device or a pipe; name a file", flag, file));
  require_folder(flag, path.parent_path());
}

}  // namespace megatron
