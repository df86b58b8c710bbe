#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Writes a file so that its path holds either what stood there before or all of the new contents, whatever
// dies whenever: the bytes go into PATH.partial, commit() brings them to the disk and renames. Without a
// commit nothing is left behind but, after a kill, the partial file, which the next attempt replaces.
class AtomicFile {
 public:
  static constexpr size_t kBlockAlignment = 4096;

  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void write_at(size_t offset, std::span<const std::byte> bytes);  // holes read as zeros
  // From now on write_block() passes the page cache by (O_DIRECT): it costs the processor next to nothing,
  // and writing one file from several threads is not serialised. Nothing happens where the file system
  // cannot.
  void bypass_cache();
  // As write_at(); offset and address should be multiples of kBlockAlignment, the size too but for the last.
  void write_block(size_t offset, std::span<const std::byte> bytes);
  // Room on the disk for this many bytes, so that a full one is noticed before anything is written and the
  // file's blocks lie together. Where the file system cannot promise, nothing happens.
  void reserve(size_t bytes);
  void commit();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::string path_, partial_;
  int fd_ = -1;
  int direct_fd_ = -1;             // of the same file, with O_DIRECT
  std::vector<std::byte> buffer_;  // gathers small writes
};

void write_file_atomically(const std::string& path, std::string_view contents);

// Brings the names in a directory to the disk: after a rename, so that it outlives a power failure.
void sync_directory(const std::string& path);

}  // namespace megatron
