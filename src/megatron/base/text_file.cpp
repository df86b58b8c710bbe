#include "megatron/base/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "megatron/base/refuse.h"

namespace megatron {

std::string read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse("cannot open {}: {}", path, std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file.get())) text.append(buffer, count);
  if (std::ferror(file.get())) refuse("cannot read {}: {}", path, std::strerror(errno));
  return text;
}

}  // namespace megatron
