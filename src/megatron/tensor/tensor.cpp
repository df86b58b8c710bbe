#include "megatron/tensor/tensor.h"

namespace megatron {

Tensor::Tensor(Storage storage, int64_t offset, Shape shape, Shape strides, DType dtype)
    : storage_(std::move(storage)), offset_(offset), shape_(shape), strides_(strides), dtype_(dtype) {}

Tensor Tensor::empty(const std::shared_ptr<Allocator>& allocator, Shape shape, DType dtype, MemoryTag tag) {
  for (int64_t size : shape) require(size >= 0, "a tensor cannot have the shape {}", shape);
  size_t bytes = static_cast<size_t>(shape.numel()) * size_of(dtype);
  return Tensor(Storage(allocator, bytes, tag), 0, shape, shape.row_major_strides(), dtype);
}

Tensor Tensor::wrap(void* data, Shape shape, DType dtype, Device device, std::shared_ptr<void> owner) {
  size_t bytes = static_cast<size_t>(shape.numel()) * size_of(dtype);
  return Tensor(Storage(data, bytes, device, std::move(owner)), 0, shape, shape.row_major_strides(), dtype);
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != expected) return shape_.numel() == 0;
    expected *= shape_[i];
  }
  return true;
}

std::string Tensor::str() const {
  if (!defined()) return "undefined tensor";
  return fmt::format("{}{} on {}", dtype_, shape_, device());
}

void Tensor::reject_dtype(DType wanted) const { fail("the tensor {} was read as {}", *this, wanted); }

void Tensor::reject_read() const {
  if (!storage_) fail("an undefined tensor was read");
  fail("the tensor {} was read after its memory was given back", *this);
}

void Tensor::reject_tracked(const char* view) const {
  if (grad_slot_)
    fail(
        "{}: the tensor {} is on a tape, and a plain view would lose its gradient; use ops::{} or detach() "
        "first",
        view, *this, view);
}

Tensor Tensor::view(Shape shape) const {
  reject_tracked("view");
  int64_t known = 1;
  int unknown = -1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      require(unknown < 0, "view: {} leaves two sizes open", shape);
      unknown = i;
    } else {
      known *= shape[i];
    }
  }
  if (unknown >= 0) {
    require(known > 0 && numel() % known == 0, "view: {} does not fit {}", shape, *this);
    shape[unknown] = numel() / known;
  }
  require(shape.numel() == numel(), "view: {} has {} elements, {} has {}", shape, shape.numel(), *this,
          numel());
  if (is_contiguous()) return Tensor(storage_, offset_, shape, shape.row_major_strides(), dtype_);

  // Walk both shapes from the inside: a new dimension may not straddle a jump in the old strides.
  Shape strides = shape;
  int old = rank() - 1;
  int64_t available = 1, step = 0;  // of the old run of dimensions that is being used up
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 1) {
      strides[i] = 0;
      continue;
    }
    if (available == 1) {
      while (old >= 0 && shape_[old] == 1) --old;
      require(old >= 0, "view: {} cannot be viewed as {}", *this, shape);
      available = shape_[old];
      step = strides_[old--];
      while (old >= 0 && (shape_[old] == 1 || strides_[old] == step * available)) available *= shape_[old--];
    }
    require(available % shape[i] == 0, "view: {} with strides {} cannot be viewed as {} without a copy",
            *this, strides_, shape);
    strides[i] = step;
    step *= shape[i];
    available /= shape[i];
  }
  return Tensor(storage_, offset_, shape, strides, dtype_);
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end) const {
  reject_tracked("slice");
  if (dim < 0) dim += rank();
  require(dim >= 0 && dim < rank() && begin >= 0 && begin <= end && end <= shape_[dim],
          "slice: [{}, {}) of dimension {} is outside {}", begin, end, dim, *this);
  Shape shape = shape_;
  shape[dim] = end - begin;
  return Tensor(storage_, offset_ + begin * strides_[dim], shape, strides_, dtype_);
}

Tensor Tensor::select(int dim, int64_t index) const {
  reject_tracked("select");
  if (dim < 0) dim += rank();
  require(dim >= 0 && dim < rank() && index >= 0 && index < shape_[dim],
          "select: index {} of dimension {} is outside {}", index, dim, *this);
  Shape shape = shape_, strides = strides_;
  shape.erase(dim);
  strides.erase(dim);
  return Tensor(storage_, offset_ + index * strides_[dim], shape, strides, dtype_);
}

Tensor Tensor::transpose(int a, int b) const {
  reject_tracked("transpose");
  if (a < 0) a += rank();
  if (b < 0) b += rank();
  require(a >= 0 && b >= 0 && a < rank() && b < rank(), "transpose: {} and {} are not dimensions of {}", a, b,
          *this);
  Shape shape = shape_, strides = strides_;
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return Tensor(storage_, offset_, shape, strides, dtype_);
}

Tensor Tensor::expand(Shape shape) const {
  reject_tracked("expand");
  require(shape.rank() >= rank(), "expand: {} cannot become {}", *this, shape);
  Shape strides = shape;
  int added = shape.rank() - rank();
  for (int i = 0; i < shape.rank(); ++i) {
    bool repeated = i < added || (shape_[i - added] == 1 && shape[i] != 1);
    require(repeated || shape_[i - added] == shape[i], "expand: {} cannot become {}", *this, shape);
    strides[i] = repeated ? 0 : strides_[i - added];
  }
  return Tensor(storage_, offset_, shape, strides, dtype_);
}

Tensor Tensor::reinterpret(DType dtype) const {
  reject_tracked("reinterpret");
  require(size_of(dtype) == size_of(dtype_), "reinterpret: {} and {} differ in size", dtype_, dtype);
  return Tensor(storage_, offset_, shape_, strides_, dtype);
}

}  // namespace megatron
