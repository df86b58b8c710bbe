#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace megatron::tokenizers {

// Many values of a type for which zero bytes are a value. Large arrays ask the system for large pages: what
// is looked up at random places misses the translation of addresses otherwise.
template <class T>
class ZeroedArray {
 public:
  ZeroedArray() = default;
  explicit ZeroedArray(size_t size) : size_(size) {
    if (bytes() < kLarge) {
      data_ = static_cast<T*>(std::aligned_alloc(kLine, (bytes() + kLine - 1) / kLine * kLine));
      if (!data_) throw std::bad_alloc();
      __builtin_memset(static_cast<void*>(data_), 0, bytes());
      return;
    }
    void* pages = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    ::madvise(pages, bytes(), MADV_HUGEPAGE);
    data_ = static_cast<T*>(pages);
  }
  ~ZeroedArray() {
    if (bytes() < kLarge)
      std::free(data_);
    else
      ::munmap(data_, bytes());
  }
  ZeroedArray(ZeroedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

 private:
  static constexpr size_t kLarge = size_t{2} << 20, kLine = 64;

  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace megatron::tokenizers
