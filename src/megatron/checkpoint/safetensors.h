#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/atomic_file.h"
#include "megatron/base/checksum.h"
#include "megatron/base/mapped_file.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// One tensor of a safetensors file. `stored` is the file's own name of its dtype, `dtype` what tensor()
// returns: the same but for the unsigned integers that we do not compute with, which become the next wider
// signed ones (U16 → int32, U32 → int64; U64 → int64 where every value fits), and F8_E8M0, whose bytes
// (exponents) become uint8.
struct SafetensorsEntry {
  std::string name, stored;
  DType dtype;
  Shape shape;
  size_t begin, bytes;  // in the file
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// A safetensors file read by mapping it: opening reads the header alone. A malformed file is refused with a
// ConfigError that lists what is wrong. Safe to share between threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their data
  const SafetensorsMetadata& metadata() const { return metadata_; }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr where absent
  const SafetensorsEntry& at(std::string_view name) const;    // an Error with the nearest names where absent

  // On the CPU and read-only, a view of the mapping that keeps it alive: slices of it read just their pages.
  // Copied only where the dtype is converted or the data is not aligned to its elements.
  Tensor tensor(std::string_view name) const;
  std::span<const std::byte> header() const;  // all that precedes the data
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const {
    return file_->bytes().subspan(entry.begin, entry.bytes);
  }

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  SafetensorsMetadata metadata_;
};

struct SafetensorsItem {
  std::string name;
  DType dtype;
  Shape shape;
};

// Writes a safetensors file of known contents: tensors may come in any order and in pieces, so that nothing
// but the piece at hand is in memory. The layout is the reference library's own (widest dtype first, then by
// name), so every tensor is aligned; in a large file all data begins at a block of the disk (see
// AtomicFile::write_block). The path changes only when commit() is through (see AtomicFile).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsItem> items,
                    const SafetensorsMetadata& metadata = {});

  const std::string& path() const { return file_.path(); }
  void write(std::string_view name, const Tensor& tensor);  // on the CPU, contiguous
  // Bytes of one tensor from `begin` on, each exactly once over all calls.
  void write(std::string_view name, size_t begin, std::span<const std::byte> bytes);
  // The parts of that, for whoever gathers a file in blocks: take() sums bytes of a tensor and tells where
  // they belong in the file, by one thread and in the order of a tensor's bytes; write_block() brings what
  // was taken to the file, as AtomicFile does, by any thread.
  size_t item(std::string_view name) const;  // by which take() knows a tensor; in the order of their data
  size_t take(size_t item, size_t begin, std::span<const std::byte> bytes);
  void bypass_cache() { file_.bypass_cache(); }
  void write_block(size_t offset, std::span<const std::byte> bytes) { file_.write_block(offset, bytes); }

  void commit();                                                           // an Error where bytes are missing
  size_t bytes() const { return bytes_; }                                  // of the file
  bool is_large() const { return is_large_; }                              // worth writing in blocks
  const std::string& header_checksum() const { return header_checksum_; }  // XXH64 of what precedes the data
  // XXH64 of a tensor's bytes, all of which must have come, in their order.
  std::string checksum(std::string_view name) const;

 private:
  struct Slot {
    SafetensorsItem item;
    size_t begin, bytes, taken = 0, summed = 0;  // summed: bytes that came in order
    Checksum checksum = {};
  };

  AtomicFile file_;
  size_t bytes_ = 0;
  bool is_large_ = false;
  std::string header_checksum_;
  std::vector<Slot> slots_;
  std::map<std::string, size_t, std::less<>> index_;
};

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata = {});

std::string_view safetensors_name(DType dtype);  // "BF16"

}  // namespace megatron
