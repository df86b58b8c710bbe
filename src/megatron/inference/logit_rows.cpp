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

std::optional<int64_t> LogitRows::next_drawn(const DeviceDraw& draw) {
  if (!ctx_.device.is_cuda()) return {};
  if (!output_.drawn && draw[kSampleTemperature] > 0) {
    const Tensor token = ctx_.empty({1}, DType::I64),
                 settings =
                     ctx_.from_vector(std::vector<double>(draw.begin(), draw.end()), {1, kSampleSettings});
    if (!ctx_.kernels->sample(ctx_.kernel_context(),
                              {output_.logits.slice(0, row_, row_ + 1), settings, token}))
      return {};
    skip(1);
    const int64_t found = ctx_.to_vector<int64_t>(token)[0];
    world_.require_running();
    return found;
  }
  if (!asked_) {
    asked_ = true;
    if (output_.drawn) {
      ctx_.stream.synchronize();
      const auto* values = output_.drawn.data<int64_t>();
      drawn_.assign(values, values + output_.drawn.numel());
    } else {
      const Tensor indices = ctx_.empty({output_.logits.size(0)}, DType::I64);
      if (ctx_.kernels->argmax(ctx_.kernel_context(), {output_.logits, indices}))
        drawn_ = ctx_.to_vector<int64_t>(indices);
    }
    world_.require_running();
  }
  if (drawn_.empty()) return {};
  const int64_t found = drawn_[static_cast<size_t>(row_)];
  skip(1);
  return found;
}

}  // namespace megatron
