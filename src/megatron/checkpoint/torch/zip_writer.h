#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace megatron {

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);  // of zip; `before`: what came so far

// Writes a zip archive as torch.save does: stored entries whose data begin at multiples of 64. Data may come
// in pieces; the sink is told where each run of bytes belongs, counted from the archive's begin, and may be
// told to write a place again. Archives of 4 GiB and more are refused.
class ZipWriter {
 public:
  using Sink = std::function<void(size_t offset, std::span<const std::byte> bytes)>;

  explicit ZipWriter(Sink sink) : sink_(std::move(sink)) {}

  void add(const std::string& name, std::string_view contents);
  void begin(const std::string& name, size_t size);
  void write(std::span<const std::byte> bytes);
  void end();
  size_t finish();  // the archive's size

 private:
  struct Entry {
    std::string name;
    size_t header, size, written = 0;
    uint32_t crc = 0;
  };
  std::string local_header(const Entry& entry) const;
  void put(std::string_view bytes);

  Sink sink_;
  size_t at_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace megatron
