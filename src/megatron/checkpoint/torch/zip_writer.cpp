#include "megatron/checkpoint/torch/zip_writer.h"

#include <array>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr size_t kAlignment = 64, kLocalHeader = 30, kLimit = 0xffffffff;

// table[k][b]: the remainder of byte b with k zero bytes behind it, for eight bytes at a time.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    table[0][byte] = value;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t byte = 0; byte < 256; ++byte)
      table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
  return table;
}();

void add_number(std::string& text, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> (8 * k) & 0xff];
  }
  for (; i < bytes.size(); ++i) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(bytes[i])) & 0xff];
  return ~crc;
}

void ZipWriter::put(std::string_view bytes) {
  sink_(at_, std::as_bytes(std::span(bytes)));
  at_ += bytes.size();
}

// Ends, by an extra field, where the data begin.
std::string ZipWriter::local_header(const Entry& entry) const {
  const size_t end = entry.header + kLocalHeader + entry.name.size() + 4;
  const size_t padding = (kAlignment - end % kAlignment) % kAlignment;
  std::string header;
  add_number(header, 0x04034b50, 4);
  add_number(header, 0, 2 + 2 + 2 + 2 + 2);  // version, flags, method (stored), time, date
  add_number(header, entry.crc, 4);
  add_number(header, entry.size, 4);
  add_number(header, entry.size, 4);
  add_number(header, entry.name.size(), 2);
  add_number(header, 4 + padding, 2);
  header += entry.name;
  header += "FB";  // the field's tag
  add_number(header, padding, 2);
  header.append(padding, 'Z');
  return header;
}

void ZipWriter::begin(const std::string& name, size_t size) {
  require(size < kLimit && at_ < kLimit - size, "zip: {} of {} bytes makes the archive 4 GiB or more", name,
          size);
  entries_.push_back({name, at_, size});
  put(local_header(entries_.back()));
}

void ZipWriter::write(std::span<const std::byte> bytes) {
  Entry& entry = entries_.back();
  entry.crc = crc32(bytes, entry.crc);
  entry.written += bytes.size();
  sink_(at_, bytes);
  at_ += bytes.size();
}

void ZipWriter::end() {
  const Entry& entry = entries_.back();
  require(entry.written == entry.size, "zip: {} has {} bytes, expected {}", entry.name, entry.written,
          entry.size);
  const std::string header = local_header(entry);  // now with its checksum
  sink_(entry.header, std::as_bytes(std::span(std::string_view(header))));
}

void ZipWriter::add(const std::string& name, std::string_view contents) {
  begin(name, contents.size());
  write(std::as_bytes(std::span(contents)));
  end();
}

size_t ZipWriter::finish() {
  std::string directory;
  const size_t begin = at_;
  for (const Entry& entry : entries_) {
    add_number(directory, 0x02014b50, 4);
    add_number(directory, 0, 2 + 2 + 2 + 2 + 2 + 2);
    add_number(directory, entry.crc, 4);
    add_number(directory, entry.size, 4);
    add_number(directory, entry.size, 4);
    add_number(directory, entry.name.size(), 2);
    add_number(directory, 0, 2 + 2 + 2 + 2 + 4);  // extra, comment, disk, attributes
    add_number(directory, entry.header, 4);
    directory += entry.name;
  }
  const size_t size = directory.size();
  add_number(directory, 0x06054b50, 4);
  add_number(directory, 0, 4);
  add_number(directory, entries_.size(), 2);
  add_number(directory, entries_.size(), 2);
  add_number(directory, size, 4);
  add_number(directory, begin, 4);
  add_number(directory, 0, 2);
  put(directory);
  return at_;
}

}  // namespace megatron
