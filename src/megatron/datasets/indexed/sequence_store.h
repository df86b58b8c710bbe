#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace megatron {

// A read-only array that need not be aligned to its elements, as those of an .idx file are not.
template <class T>
class PackedArray {
 public:
  PackedArray() = default;
  PackedArray(const std::byte* data, int64_t size) : data_(data), size_(size) {}
  explicit PackedArray(std::span<const T> values)
      : PackedArray(std::as_bytes(values).data(), static_cast<int64_t>(values.size())) {}

  int64_t size() const { return size_; }
  T operator[](int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Token sequences by number: what samples are cut from. Safe to share between threads.
class SequenceStore {
 public:
  virtual ~SequenceStore() = default;

  // Tokens of each sequence.
  virtual PackedArray<int32_t> lengths() const = 0;
  // Tokens of the sequences [begin, end) together, where that is known without adding lengths up; else -1.
  virtual int64_t tokens_between(int64_t /*begin*/, int64_t /*end*/) const { return -1; }
  // `out.size()` tokens from `offset` of a sequence on. Reading may run into the next sequence, for index
  // caches may ask for it, but an Error refuses to leave the data.
  virtual void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const = 0;
  // The prefix of its files, or what stands for it in messages and cache descriptions.
  virtual const std::string& name() const = 0;
};

// Sequences that are sentences of documents.
class SentenceStore : public SequenceStore {
 public:
  // Entry d is the first sequence of document d; the last entry is the number of sequences.
  virtual PackedArray<int64_t> document_index() const = 0;
  virtual int64_t max_length() const = 0;  // no sequence of a sound index has more tokens
};

}  // namespace megatron
