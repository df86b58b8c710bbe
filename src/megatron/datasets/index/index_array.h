#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// The integer types of index files; names are those of NumPy.
enum class IndexType : uint8_t { i2, i4, i8, u4 };

constexpr size_t size_of(IndexType type) { return type == IndexType::i2 ? 2 : type == IndexType::i8 ? 8 : 4; }

// A one- or two-dimensional array of integers that lies in memory or in a mapped .npy file. A value: copies
// share the memory.
class IndexArray {
 public:
  IndexArray() = default;
  IndexArray(std::shared_ptr<const void> owner, const std::byte* data, IndexType type,
             std::vector<int64_t> shape)
      : owner_(std::move(owner)), data_(data), type_(type), shape_(std::move(shape)) {}

  IndexType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t rows() const { return shape_.empty() ? 0 : shape_[0]; }
  int64_t columns() const { return shape_.size() < 2 ? 1 : shape_[1]; }
  int64_t size() const { return rows() * columns(); }
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size()) * size_of(type_)}; }

  int64_t operator[](int64_t i) const {
    switch (type_) {
      case IndexType::i2:
        return load<int16_t>(i);
      case IndexType::i4:
        return load<int32_t>(i);
      case IndexType::u4:
        return load<uint32_t>(i);
      default:
        return load<int64_t>(i);
    }
  }
  int64_t at(int64_t row, int64_t column) const { return (*this)[row * columns() + column]; }

 private:
  template <class T>
  int64_t load(int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  IndexType type_ = IndexType::i8;
  std::vector<int64_t> shape_;
};

// A .npy file (format 1 or 2, C order, one of the types above), mapped: opening reads its header alone. A
// malformed file is refused with an Error that names it.
IndexArray open_npy(const std::string& path);

// An array to be filled, in a file that appears at `path` when finished, or in memory where `path` is empty.
// The file is written through a mapping, so that its pages need no memory of the process.
class IndexArrayBuilder {
 public:
  IndexArrayBuilder(std::string path, IndexType type, std::vector<int64_t> shape);
  ~IndexArrayBuilder();
  IndexArrayBuilder(const IndexArrayBuilder&) = delete;
  IndexArrayBuilder& operator=(const IndexArrayBuilder&) = delete;

  // The elements; T must be of the array's size.
  template <class T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  IndexArray finish();

 private:
  std::string path_, partial_;
  IndexType type_;
  std::vector<int64_t> shape_;
  std::shared_ptr<void> mapping_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0, mapped_ = 0;
  int fd_ = -1;
};

}  // namespace megatron
