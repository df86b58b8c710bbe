#include "megatron/checkpoint/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace megatron {

Tensor host_tensor(const Shape& shape, DType dtype) {
  constexpr std::align_val_t alignment{64};
  const size_t bytes = std::max<size_t>(1, static_cast<size_t>(shape.numel()) * size_of(dtype));
  std::shared_ptr<void> memory(::operator new(bytes, alignment),
                               [=](void* data) { ::operator delete(data, alignment); });
  return Tensor::wrap(memory.get(), shape, dtype, kCpu, memory);
}

Tensor StagingBuffer::tensor(const Shape& shape, DType dtype) {
  const int64_t bytes = shape.numel() * static_cast<int64_t>(size_of(dtype));
  if (!memory_ || static_cast<int64_t>(memory_.bytes()) < bytes)
    memory_ = host_tensor({std::max(bytes, kPieceBytes)}, DType::U8);
  return Tensor::wrap(memory_.raw(), shape, dtype);
}

Tensor box_of(const Tensor& tensor, const Box& box) {
  Tensor view = tensor.detach();
  for (int dim = 0; dim < tensor.rank(); ++dim)
    view = view.slice(dim, box.offset[dim], box.offset[dim] + box.extent[dim]);
  return view;
}

std::vector<Box> cut(const Shape& shape, int64_t elements) {
  const Box whole = whole_box(shape);
  if (shape.numel() <= elements) return {whole};
  int dim = 0;
  while (shape[dim] == 1) ++dim;
  const int64_t rows = shape[dim], step = std::max<int64_t>(1, elements / (shape.numel() / rows));
  std::vector<Box> boxes;
  for (int64_t begin = 0; begin < rows; begin += step) {
    boxes.push_back(whole);
    boxes.back().offset[dim] = begin;
    boxes.back().extent[dim] = std::min(step, rows - begin);
  }
  return boxes;
}

void copy_host(const Tensor& source, const Tensor& target) {
  require(source.shape() == target.shape() && source.dtype() == target.dtype() && source.device().is_cpu() &&
              target.device().is_cpu(),
          "copy: {} cannot become {} bit for bit", source, target);
  if (source.numel() == 0) return;
  // The inner dimensions that lie densely in both are one run of bytes.
  const Shape& shape = source.shape();
  int outer = shape.rank();
  int64_t run = 1;
  while (outer > 0) {
    const int dim = outer - 1;
    if (shape[dim] != 1 && (source.stride(dim) != run || target.stride(dim) != run)) break;
    run *= shape[dim];
    --outer;
  }
  const auto size = static_cast<int64_t>(size_of(source.dtype()));
  const auto* from = static_cast<const char*>(source.raw());
  auto* to = static_cast<char*>(target.raw());
  int64_t index[Shape::kMaxRank] = {};
  for (;;) {
    int64_t read = 0, write = 0;
    for (int i = 0; i < outer; ++i) {
      read += index[i] * source.stride(i);
      write += index[i] * target.stride(i);
    }
    std::memcpy(to + write * size, from + read * size, static_cast<size_t>(run * size));
    int dim = outer - 1;
    while (dim >= 0 && ++index[dim] == shape[dim]) index[dim--] = 0;
    if (dim < 0) return;
  }
}

}  // namespace megatron
