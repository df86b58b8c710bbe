#pragma once

#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/float_types.h"
#include "megatron/base/shape.h"
#include "megatron/tensor/storage.h"

namespace megatron {

// Where the gradient of a tensor is gathered: a slot of one tape. Tape 0 is none.
struct GradSlot {
  uint32_t tape = 0, index = 0;
  explicit operator bool() const { return tape != 0; }
};

// A value: shape, strides, dtype and a share of some storage. Copying it copies no data; views are real
// views.
class Tensor {
 public:
  Tensor() = default;  // undefined
  Tensor(Storage storage, int64_t offset, Shape shape, Shape strides, DType dtype);
  static Tensor empty(const std::shared_ptr<Allocator>& allocator, Shape shape, DType dtype,
                      MemoryTag tag = MemoryTag::Activation);
  // A tensor over memory owned elsewhere.
  static Tensor wrap(void* data, Shape shape, DType dtype, Device device = kCpu,
                     std::shared_ptr<void> owner = {});

  bool defined() const { return static_cast<bool>(storage_); }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim]; }
  int64_t numel() const { return shape_.numel(); }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_.device(); }
  bool is_contiguous() const;
  const Storage& storage() const { return storage_; }
  int64_t offset() const { return offset_; }  // in elements
  std::string str() const;                    // "bf16[2, 3] on cpu"

  // Typed pointers check the dtype; all check that the memory was not given back.
  template <class T>
  T* data() const {
    if (dtype_ != dtype_of<T>()) [[unlikely]]
      reject_dtype(dtype_of<T>());
    return static_cast<T*>(raw());
  }
  void* raw() const {
    if (!storage_ || storage_.freed()) [[unlikely]]
      reject_read();
    return static_cast<char*>(storage_.data()) + offset_ * static_cast<int64_t>(size_of(dtype_));
  }

  // Views. A tensor on a tape refuses them, for its gradient would be lost: use the functions of ops, or
  // detach().
  Tensor view(Shape shape) const;  // one size may be -1; the elements must lie so that no copy is needed
  Tensor slice(int dim, int64_t begin, int64_t end) const;
  Tensor select(int dim, int64_t index) const;  // drops the dimension
  Tensor transpose(int a, int b) const;
  Tensor expand(Shape shape) const;       // repeats dimensions of size 1 with stride 0
  Tensor reinterpret(DType dtype) const;  // same bytes, same element size

  GradSlot grad_slot() const { return grad_slot_; }
  Tensor detach() const {
    Tensor result = *this;
    result.grad_slot_ = {};
    return result;
  }
  Tensor with_grad_slot(GradSlot slot) const {
    Tensor result = *this;
    result.grad_slot_ = slot;
    return result;
  }

 private:
  [[noreturn]] void reject_dtype(DType wanted) const;
  [[noreturn]] void reject_read() const;
  void reject_tracked(const char* view) const;

  Storage storage_;
  int64_t offset_ = 0;
  Shape shape_, strides_;
  DType dtype_ = DType::F32;
  GradSlot grad_slot_;
};

}  // namespace megatron

template <>
struct fmt::formatter<megatron::Tensor> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const megatron::Tensor& tensor, fmt::format_context& ctx) const {
    return fmt::format_to(ctx.out(), "{}", tensor.str());
  }
};
