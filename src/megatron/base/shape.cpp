#include "megatron/base/shape.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {

Shape::Shape(std::span<const int64_t> values) : rank_(static_cast<int>(values.size())) {
  require(values.size() <= kMaxRank, "a tensor has at most {} dimensions, not {}", kMaxRank, values.size());
  std::copy(values.begin(), values.end(), values_);
}

void Shape::push_back(int64_t value) {
  require(rank_ < kMaxRank, "a tensor has at most {} dimensions", kMaxRank);
  values_[rank_++] = value;
}

void Shape::erase(int dim) {
  if (dim < 0) dim += rank_;
  require(dim >= 0 && dim < rank_, "dimension {} is out of range for {}", dim, *this);
  std::copy(values_ + dim + 1, values_ + rank_, values_ + dim);
  --rank_;
}

Shape Shape::row_major_strides() const {
  Shape strides = *this;
  int64_t step = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    strides.values_[i] = step;
    step *= values_[i];
  }
  return strides;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(values_[i]);
  return text + "]";
}

}  // namespace megatron
