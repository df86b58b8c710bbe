#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace megatron {

// The bytes of a file from front to back.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `out`; 0 at the end.
  virtual size_t read(std::span<char> out) = 0;
  // How far into the file itself reading has come, for progress.
  virtual int64_t consumed() const = 0;
};

// A file or pipe; gzip, zstd and xz are recognised by their first bytes and read as what they hold.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// The elements of a JSON array as lines, whatever their layout in the file. An Error names `origin` and the
// element where the array is malformed; elements themselves are checked by whoever parses them.
std::unique_ptr<ByteSource> array_to_lines(std::unique_ptr<ByteSource> source, std::string origin);

}  // namespace megatron
