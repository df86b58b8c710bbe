#pragma once

#include <memory>
#include <string>

#include "megatron/base/mapped_file.h"
#include "megatron/datasets/indexed/sequence_store.h"
#include "megatron/datasets/indexed/token_type.h"

namespace megatron {

// The bytes of a .bin file: mapped, or read by pread where a file system maps badly.
class TokenBytes {
 public:
  virtual ~TokenBytes() = default;
  virtual int64_t size() const = 0;
  virtual void read(int64_t begin, std::span<std::byte> out) const = 0;
};
std::unique_ptr<TokenBytes> open_token_bytes(const std::string& path, bool mmap);

struct IndexedDatasetOptions {
  bool multimodal = false;  // whether the .idx ends with modes; the file itself does not say
  bool mmap = true;
};

// Megatron's token dataset, PREFIX.bin and PREFIX.idx. Opening checks the header and all sizes; verify()
// checks every entry.
class IndexedDataset final : public SentenceStore {
 public:
  explicit IndexedDataset(std::string prefix, IndexedDatasetOptions options = {});

  TokenType type() const { return type_; }
  int64_t sequences() const { return lengths_.size(); }
  int64_t documents() const { return document_index_.size() - 1; }
  int64_t bin_bytes() const { return tokens_->size(); }
  PackedArray<int32_t> lengths() const override { return lengths_; }
  int64_t tokens_between(int64_t begin, int64_t end) const override;
  PackedArray<int64_t> offsets() const { return offsets_; }  // in bytes of the .bin
  PackedArray<int64_t> document_index() const override { return document_index_; }
  int64_t max_length() const override { return bin_bytes() / static_cast<int64_t>(size_of(type_)); }
  PackedArray<int8_t> modes() const { return modes_; }  // empty unless multimodal
  const std::string& name() const override { return prefix_; }

  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;
  // Elements as they are stored.
  void read_bytes(int64_t sequence, int64_t offset, std::span<std::byte> out) const;
  // Reads every entry of the index; an Error names the first that is wrong.
  void verify() const;

 private:
  std::string prefix_;
  MappedFile index_;
  std::unique_ptr<TokenBytes> tokens_;
  TokenType type_ = TokenType::i32;
  PackedArray<int32_t> lengths_;
  PackedArray<int64_t> offsets_, document_index_;
  PackedArray<int8_t> modes_;
};

}  // namespace megatron
