#include "megatron/checkpoint/torch/zip_archive.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr uint64_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kEntrySize = 46, kLocalSize = 30;
constexpr uint64_t kMaxComment = 65535;

// Little-endian numbers at places that are checked.
class ZipBytes {
 public:
  ZipBytes(std::span<const std::byte> data, const std::string& origin) : data_(data), origin_(origin) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("{}: not a sound zip archive: {}; copy the file again", origin_,
                                  fmt::format(format, std::forward<Args>(args)...)));
  }
  std::span<const std::byte> part(uint64_t at, uint64_t size) const {
    if (at > data_.size() || size > data_.size() - at)
      refuse("bytes {} to {} of {}", at, at + size, data_.size());
    return data_.subspan(at, size);
  }
  uint64_t number(uint64_t at, size_t bytes) const {
    uint64_t value = 0;
    const auto from = part(at, bytes);
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(from[i])} << (8 * i);
    return value;
  }
  uint64_t size() const { return data_.size(); }

 private:
  std::span<const std::byte> data_;
  const std::string& origin_;
};

struct Directory {
  uint64_t entries, begin;
};

// The end record stands last, behind at most a comment; the numbers of a large archive stand before it.
Directory find_directory(const ZipBytes& zip) {
  const uint64_t lowest = zip.size() > kEndSize + kMaxComment ? zip.size() - kEndSize - kMaxComment : 0;
  if (zip.size() < kEndSize) zip.refuse("only {} bytes", zip.size());
  uint64_t end = zip.size() - kEndSize;
  while (zip.number(end, 4) != 0x06054b50) {
    if (end == lowest) zip.refuse("its directory is missing");
    --end;
  }
  Directory found{zip.number(end + 10, 2), zip.number(end + 16, 4)};
  const bool large =
      found.entries == 0xffff || found.begin == 0xffffffff || zip.number(end + 12, 4) == 0xffffffff;
  if (large || (end >= kLocatorSize && zip.number(end - kLocatorSize, 4) == 0x07064b50)) {
    if (end < kLocatorSize || zip.number(end - kLocatorSize, 4) != 0x07064b50)
      zip.refuse("its zip64 locator is missing");
    const uint64_t end64 = zip.number(end - kLocatorSize + 8, 8);
    if (zip.part(end64, kEnd64Size); zip.number(end64, 4) != 0x06064b50)
      zip.refuse("its zip64 directory is missing");
    found = {zip.number(end64 + 32, 8), zip.number(end64 + 48, 8)};
  }
  if (found.entries > zip.size() / kEntrySize)
    zip.refuse("{} entries in {} bytes", found.entries, zip.size());
  return found;
}

// The sizes and the place that an entry's zip64 field has in place of 0xffffffff, in this order.
void read_zip64(const ZipBytes& zip, uint64_t at, uint64_t size, std::span<uint64_t* const> wanted) {
  for (const uint64_t end = at + size; at + 4 <= end;) {
    const uint64_t tag = zip.number(at, 2), length = zip.number(at + 2, 2);
    at += 4;
    if (tag == 1) {
      uint64_t place = at;
      for (uint64_t* value : wanted) {
        if (*value != 0xffffffff) continue;
        if (place + 8 > at + length) zip.refuse("a zip64 field is short");
        *value = zip.number(place, 8);
        place += 8;
      }
    }
    at += length;
  }
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> data, std::string origin) : origin_(std::move(origin)) {
  const ZipBytes zip(data, origin_);
  const Directory directory = find_directory(zip);
  uint64_t at = directory.begin;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (zip.part(at, kEntrySize); zip.number(at, 4) != 0x02014b50) zip.refuse("entry {} is missing", i);
    const uint64_t method = zip.number(at + 10, 2), name_size = zip.number(at + 28, 2),
                   extra_size = zip.number(at + 30, 2);
    uint64_t stored = zip.number(at + 20, 4), size = zip.number(at + 24, 4), local = zip.number(at + 42, 4);
    const auto raw = zip.part(at + kEntrySize, name_size);
    std::string name(reinterpret_cast<const char*>(raw.data()), raw.size());
    uint64_t* const wanted[] = {&size, &stored, &local};
    read_zip64(zip, at + kEntrySize + name_size, extra_size, wanted);
    if (method != 0 || stored != size)
      throw ConfigError(
          fmt::format("{}: {} is compressed, which torch.save never does; save it again", origin_, name));
    if (zip.part(local, kLocalSize); zip.number(local, 4) != 0x04034b50) zip.refuse("{} has no header", name);
    const auto contents =
        zip.part(local + kLocalSize + zip.number(local + 26, 2) + zip.number(local + 28, 2), size);
    if (const size_t folder = name.find('/'); folder != std::string::npos) name.erase(0, folder + 1);
    if (!entries_.emplace(std::move(name), contents).second) zip.refuse("an entry stands there twice");
    at += kEntrySize + name_size + extra_size + zip.number(at + 32, 2);
  }
}

const std::span<const std::byte>* ZipArchive::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::span<const std::byte> ZipArchive::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  throw ConfigError(
      fmt::format("{}: the archive has no {}; it was not written by torch.save", origin_, name));
}

}  // namespace megatron
