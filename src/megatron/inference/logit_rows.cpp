#include "megatron/inference/logit_rows.h"

#include <algorithm>

namespace megatron {

void LogitRows::skip(int64_t rows) {
  row_ += rows;
  if (row_ > fetched_) fetched_ = row_;
}

std::span<float> LogitRows::next() {
  const Tensor& logits = output_.logits;
  const int64_t vocabulary = logits.size(1);
  if (row_ == fetched_) {
    constexpr int64_t kAtOnce = 32;
    const int64_t end = std::min(row_ + kAtOnce, logits.size(0));
    Tensor single = ctx_.empty({end - row_, vocabulary}, DType::F32);
    ctx_.kernels->copy(ctx_.kernel_context(), {logits.slice(0, row_, end), single});
    values_.resize(static_cast<size_t>(single.numel()));
    ctx_.to_host(single, values_.data());
    world_.require_running();
    first_ = row_;
    fetched_ = end;
  }
  const auto at = static_cast<size_t>((row_++ - first_) * vocabulary);
  return std::span(values_).subspan(at, static_cast<size_t>(vocabulary));
}

std::optional<int64_t> LogitRows::next_largest() {
  if (!asked_) {
    asked_ = true;
    if (output_.largest) {
      ctx_.stream.synchronize();
      const auto* values = output_.largest.data<int64_t>();
      largest_.assign(values, values + output_.largest.numel());
    } else if (ctx_.device.is_cuda()) {
      const Tensor indices = ctx_.empty({output_.logits.size(0)}, DType::I64);
      if (ctx_.kernels->argmax(ctx_.kernel_context(), {output_.logits, indices}))
        largest_ = ctx_.to_vector<int64_t>(indices);
    }
    world_.require_running();
  }
  if (largest_.empty()) return {};
  const int64_t found = largest_[static_cast<size_t>(row_)];
  skip(1);
  return found;
}

}  // namespace megatron
