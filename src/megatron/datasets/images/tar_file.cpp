#include "megatron/datasets/images/tar_file.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

constexpr size_t kBlock = 512;

// A field of a header: text up to its first zero.
std::string_view text(std::span<const std::byte> block, size_t at, size_t size) {
  const std::string_view field(reinterpret_cast<const char*>(block.data()) + at, size);
  return field.substr(0, field.find('\0'));
}

std::optional<size_t> octal(std::string_view digits) {
  size_t value = 0;
  bool any = false;
  for (char digit : digits) {
    if (digit == ' ' && !any) continue;
    if (digit == ' ') break;
    if (digit < '0' || digit > '7' || value >> 60 != 0) return std::nullopt;
    value = 8 * value + static_cast<size_t>(digit - '0');
    any = true;
  }
  return any ? std::optional(value) : std::nullopt;
}

// Sizes from 8 GiB on are binary, marked by the first bit.
std::optional<size_t> size_of(std::span<const std::byte> block) {
  constexpr size_t kSizeAt = 124, kSizeBytes = 12;
  if (std::to_integer<unsigned>(block[kSizeAt]) != 0x80) return octal(text(block, kSizeAt, kSizeBytes));
  size_t value = 0;
  for (size_t i = kSizeAt + 4; i < kSizeAt + kSizeBytes; ++i)
    value = value << 8 | std::to_integer<size_t>(block[i]);
  return value;
}

bool is_header(std::span<const std::byte> block) {
  constexpr size_t kSumAt = 148, kSumBytes = 8;
  size_t sum = kSumBytes * ' ';
  for (size_t i = 0; i < kBlock; ++i)
    if (i < kSumAt || i >= kSumAt + kSumBytes) sum += std::to_integer<size_t>(block[i]);
  return octal(text(block, kSumAt, kSumBytes)) == sum;
}

// "LENGTH path=NAME\n" among the records of a pax header.
std::string pax_path(std::string_view records) {
  for (size_t at = 0; at < records.size();) {
    size_t length = 0, digits = at;
    for (; digits < records.size() && records[digits] >= '0' && records[digits] <= '9'; ++digits)
      length = 10 * length + static_cast<size_t>(records[digits] - '0');
    if (length == 0 || length > records.size() - at) return {};
    const std::string_view record = records.substr(digits + 1, at + length - digits - 2);
    if (record.starts_with("path=")) return std::string(record.substr(5));
    at += length;
  }
  return {};
}

}  // namespace

TarFile::TarFile(const std::string& path) : file_(std::make_shared<MappedFile>(path)) {
  const std::span<const std::byte> all = file_->bytes();
  std::string long_name;
  for (size_t at = 0; at + kBlock <= all.size();) {
    const auto block = all.subspan(at, kBlock);
    if (std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; })) break;
    const std::optional<size_t> size = size_of(block);
    require_input(is_header(block) && size, "{}: no tar archive, or spoiled at byte {}", path, at);
    at += kBlock;
    require_input(*size <= all.size() - at, "{}: it ends before a member of {} bytes", path, *size);
    const char kind = static_cast<char>(block[156]);
    const std::string_view content(reinterpret_cast<const char*>(all.data()) + at, *size);
    if (kind == 'L') {
      long_name = content.substr(0, content.find('\0'));
    } else if (kind == 'x') {
      long_name = pax_path(content);
    } else if (kind == '0' || kind == '\0') {
      std::string name(text(block, 0, 100));
      if (const std::string_view prefix = text(block, 345, 155);
          text(block, 257, 6) == "ustar" && !prefix.empty())
        name = std::string(prefix) + "/" + name;
      members_.push_back({long_name.empty() ? name : long_name, at, *size});
      long_name.clear();
    } else if (kind != 'g') {
      long_name.clear();
    }
    at += (*size + kBlock - 1) / kBlock * kBlock;
  }
}

}  // namespace megatron
