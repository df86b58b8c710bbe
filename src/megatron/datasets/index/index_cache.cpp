#include "megatron/datasets/index/index_cache.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "megatron/base/refuse.h"
#include "megatron/datasets/index/md5.h"

namespace megatron {
namespace {

constexpr std::string_view kFactsFile = "facts.json";  // ours: upstream looks for its own files alone

// A string with everything outside ASCII escaped, as Python does by default.
void append_string(std::string& out, std::string_view text) {
  const std::string quoted = Json(text).dump();
  for (size_t i = 0; i < quoted.size();) {
    const auto lead = static_cast<uint8_t>(quoted[i]);
    if (lead < 0x80) {
      if (lead == 0x7f) {
        out += "\\u007f";
      } else {
        out += quoted[i];
      }
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    uint32_t point = lead & (0xffu >> (length + 1));
    for (size_t k = 1; k < length && i + k < quoted.size(); ++k)
      point = point << 6 | (static_cast<uint8_t>(quoted[i + k]) & 0x3fu);
    i += length;
    if (point >= 0x10000) {
      point -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (point >> 10), 0xdc00 + (point & 0x3ff));
    } else {
      out += fmt::format("\\u{:04x}", point);
    }
  }
}

void append_value(std::string& out, const Json& value, size_t indent) {
  const std::string inner = "\n" + std::string(indent + 4, ' '), outer = "\n" + std::string(indent, ' ');
  if (value.is_array() && value.size() > 0) {
    out += '[';
    const char* separator = "";
    for (const Json& item : value.as_array()) {
      out += separator + inner;
      append_value(out, item, indent + 4);
      separator = ",";
    }
    out += outer + "]";
  } else if (value.is_object() && value.size() > 0) {
    out += '{';
    const char* separator = "";
    for (const auto& [key, item] : value.as_object()) {
      out += separator + inner;
      append_string(out, key);
      out += ": ";
      append_value(out, item, indent + 4);
      separator = ",";
    }
    out += outer + "}";
  } else if (value.is_string()) {
    append_string(out, value.as_string());
  } else {
    out += value.dump();
  }
}

// Puts a small file in place by renaming it. It is not brought to the disk: the indices are, before it, and
// one that a power failure has emptied is built again.
void write_beside(const std::string& path, std::string_view text) {
  std::ofstream file;
  const std::string partial =
      fmt::format("{}.{}.{}.partial", path, ::getpid(), static_cast<const void*>(&file));
  file.open(partial, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial, path, error);
  require(file.good() && !error, "cannot write {}: {}", path,
          error ? error.message() : "the disk may be full");
}

}  // namespace

std::string python_json(const Json& value) {
  std::string text;
  append_value(text, value, 0);
  return text;
}

IndexCache::IndexCache(std::string directory, const Json& description, std::string_view kind)
    : directory_(std::move(directory)),
      description_(python_json(description)),
      hash_(md5_hex(description_)),
      kind_(kind) {}

std::string IndexCache::path(std::string_view name) const {
  if (directory_.empty()) return "";
  return (std::filesystem::path(directory_) / fmt::format("{}-{}-{}", hash_, kind_, name)).string();
}

IndexCache::Facts IndexCache::compare(const Json& facts) const {
  if (directory_.empty() || !std::filesystem::exists(path(kFactsFile))) return Facts::absent;
  try {
    return Json::read(path(kFactsFile)) == facts ? Facts::same : Facts::different;
  } catch (const Error&) {
    return Facts::different;
  }
}

void IndexCache::remember(const Json& facts) const {
  if (directory_.empty()) return;
  try {
    write_beside(path(kFactsFile), facts.dump());
  } catch (const Error&) {
    // The index is then checked again next time.
  }
}

void IndexCache::prepare() const {
  if (directory_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (!error && ::access(directory_.c_str(), W_OK | X_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  require_input(!error,
                "the index cache {} cannot be written: {}; name another folder with --data-cache-path",
                directory_, error.message());
  std::filesystem::remove(path(kFactsFile), error);
}

void IndexCache::publish(const Json& facts) const {
  if (directory_.empty()) return;
  write_beside(path("description.txt"), description_);
  write_beside(path(kFactsFile), facts.dump());
}

}  // namespace megatron
